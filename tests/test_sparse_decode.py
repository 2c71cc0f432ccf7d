"""Which kernels few queries under masks become, on a GPU that is made up."""

from __future__ import annotations

import fake_cuda

SCRIPT = """
    import numpy as np
    from bsrgemm import BlockMask, DeviceArray, attention
    from fake_cuda import driver

    fake = driver()
    rng = np.random.default_rng(0)
    BLOCK = (16, 64)

    def array(*shape, dtype=np.float16):
        return DeviceArray.from_host(np.ones(shape, dtype))

    def launched(q, k, mask, **options):
        before = fake.fake_launches()
        attention(q, k, k, block_mask=mask, enable_gqa=True, **options)
        return fake.fake_last_kernel().decode(), fake.fake_launches() - before

    def masks(lead, count):
        scores = rng.standard_normal((*lead, 1, 64)).astype(np.float32)
        device = BlockMask.topk(DeviceArray.from_host(scores), count, BLOCK, queries=1)
        return BlockMask.topk(scores, count, BLOCK, queries=1), device

    q, many, k = array(2, 8, 1, 128), array(2, 8, 16, 128), array(2, 2, 4096, 128)
    # Few blocks are one part: the kernel is named after the rows of all heads that share a mask.
    for lead in ((1, 1), (2, 1), (1, 8), (2, 8)):
        host, device = masks(lead, 3)
        assert launched(q, k, host) == ("attention_decode_mask_f16_d128_r16", 1), lead
        assert launched(q, k, device) == ("attention_decode_mask_f16_d128_r16", 2), lead
        rows = 64 if lead[1] == 1 else 16
        assert launched(many, k, host) == (f"attention_decode_mask_f16_d128_r{rows}", 1), lead
    # One for each head of k: the rows of its whole group share it, but for more than 64 of them.
    more = array(2, 16, 16, 128)
    for batch in (1, 2):
        host, device = masks((batch, 2), 3)
        for mask, lists in ((host, 0), (device, 1)):
            found = launched(many, k, mask)
            assert found == ("attention_decode_mask_f16_d128_r64", 1 + lists), batch
            found = launched(more, k, mask, backend="decode")
            assert found == ("attention_decode_mask_f16_d128_r16", 1 + lists), batch
            found = launched(more, k, mask, backend="portable")
            assert found == ("portable_attention_f16_d128", 1 + lists), batch
    one = BlockMask.from_dense(np.eye(1, 64, dtype=bool)[None, None].repeat(8, axis=1), BLOCK)
    assert launched(many, k, one) == ("attention_decode_mask_f16_d128_r64", 1)
    # Many blocks are several parts, as far as the bound of a top-k mask goes.
    host, device = masks((1, 1), 40)
    assert launched(q, k, host) == ("attention_combine_f16", 2)
    assert launched(q, k, device) == ("attention_combine_f16", 3)
    # A window leaves a part of them.
    narrow = dict(window=(100, 0))
    assert launched(q, k, host, **narrow) == ("attention_decode_mask_f16_d128_r16", 1)
    assert launched(q, k, device, backend="portable") == ("portable_attention_f16_d128", 2)
    print("done")
"""


@fake_cuda.needs_kernels
def test_kernels_of_masks() -> None:
    assert fake_cuda.run(SCRIPT, arch=90) == "done\n"
