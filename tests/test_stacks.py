"""How many launches batches of matrices become, on a GPU that is made up."""

from __future__ import annotations

import fake_cuda

SCRIPT = """
    import numpy as np
    from bsrgemm import bsr_array, matmul, sampled_matmul, softmax
    from fake_cuda import driver
    from spaces import LentSpace

    fake, space = driver(), LentSpace()
    mask = np.tri(8, 8, dtype=bool)
    indices, indptr = np.nonzero(mask)[1], np.r_[0, mask.sum(1).cumsum()]

    def array(*shape):
        return space.array(np.ones(shape, np.float16))

    def batch(*lead):
        return bsr_array((array(*lead, mask.sum(), 64, 64), indices, indptr), (512, 512))

    def heads(count, rows=512, size=64):  # whose rows follow one another by turns
        return array(rows, count, size).swapaxes(0, 1)

    def launches(call):
        call()  # plans, and stacks of the pattern
        before = fake.fake_launches()
        call()
        return fake.fake_launches() - before

    a, one, x = batch(32), batch(), array(32, 512, 64)
    assert launches(lambda: a @ x) == 1
    assert launches(lambda: a.T @ x) == 1
    assert launches(lambda: a @ array(512, 64)) == 1
    assert launches(lambda: batch(2, 16) @ array(2, 16, 512, 64)) == 1
    # Powers of two, and what is left.
    assert launches(lambda: batch(7) @ array(7, 512, 64)) == 3
    # Copies where the matrices do not lie below one another: of X, of Y, of both, and of C.
    assert launches(lambda: a @ heads(32)) == 2
    assert launches(lambda: matmul(a, x, out=heads(32))) == 2
    assert launches(lambda: matmul(a, heads(32), out=heads(32))) == 3
    assert launches(lambda: matmul(a, heads(32), heads(32), out=heads(32))) == 4
    assert launches(lambda: array(32, 64, 512) @ a) == 3
    assert launches(lambda: a.T @ array(512, 64)) == 2
    # Not side by side: factors that begin anew with each matrix.
    assert launches(lambda: matmul(a, x, bias=array(512, 1))) == 32

    q, k = array(32, 512, 64), array(32, 512, 64)
    assert launches(lambda: sampled_matmul(q, k.swapaxes(1, 2), one)) == 1
    assert launches(lambda: sampled_matmul(q, array(64, 512), one)) == 1
    assert launches(lambda: sampled_matmul(q, k.swapaxes(1, 2), one.T)) == 1
    assert launches(lambda: sampled_matmul(q, k.swapaxes(1, 2), a, beta=1.0)) == 1
    assert launches(lambda: sampled_matmul(heads(32), k.swapaxes(1, 2), one)) == 2
    assert launches(lambda: sampled_matmul(q, heads(32).swapaxes(1, 2), one)) == 2
    assert launches(lambda: sampled_matmul(array(512, 64), k.swapaxes(1, 2), one)) == 2
    assert launches(lambda: sampled_matmul(heads(7), heads(7).swapaxes(1, 2), one)) == 7
    assert launches(lambda: sampled_matmul(q, k.swapaxes(1, 2), one, beta=1.0)) == 32

    assert launches(lambda: softmax(a)) == launches(lambda: softmax(a.T)) == 1
    assert launches(lambda: softmax(batch(7))) == 3
    print("done")
"""


@fake_cuda.needs_kernels
def test_launches() -> None:
    assert fake_cuda.run(SCRIPT) == "done\n"
