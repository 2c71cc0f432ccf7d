/* Calls that say which kernels would compute them on a GPU, in place of computing. */
#include "bsrg_py.h"

int bsrg_parse_question(PyObject *obj, bsrg_chip_question *out) {
  out->asked = NULL;
  if (bsrg_is_absent(obj)) return 0;
  out->chip = bsrg_chip_h200();
  if (bsrg_parse_chip(obj, &out->chip) < 0) return -1;
  out->question = (bsrg_question){&out->chip, BSRG_AUTO};
  out->asked = &out->question;
  return 0;
}

bsrg_device bsrg_device_of_question(const bsrg_chip_question *question, bsrg_device device) {
  return question->asked ? (bsrg_device){BSRG_CUDA, 0} : device;
}

PyObject *bsrg_answer(const bsrg_chip_question *question) {
  return question->asked ? PyUnicode_FromString(bsrg_family_name(question->question.family))
                         : Py_NewRef(Py_None);
}
