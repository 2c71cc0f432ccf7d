/* What help() and the reference say of DeviceArray, in the form that numpydoc gives to docstrings. */
#ifndef BSRG_DEVICE_ARRAY_DOC_H
#define BSRG_DEVICE_ARRAY_DOC_H

static const char device_array_doc[] =
    "A C-contiguous array in GPU memory, for using the GPU without another array library.\n\n"
    "Made by :meth:`empty` and :meth:`from_host`; other libraries take it through DLPack or the CUDA array\n"
    "interface without a copy.\n\n"
    "Notes\n"
    "-----\n"
    "Streams and lifetime. An array remembers the stream of its last use here: the stream given when it was\n"
    "made, then that of each product it took part in or the one that ``__dlpack__`` was asked for. Using it\n"
    "on another stream makes that stream wait (on the GPU) for the one before. When the last reference "
    "goes,\n"
    "the memory is freed in the order of that last stream, so it is safe to drop an array while a product\n"
    "that uses it is still running, and nothing waits on the host. Three duties stay with the user:\n\n"
    "- a stream that was used with an array must not be destroyed before the array;\n"
    "- memory that another library took is freed behind the last use here and behind all work on ordinary\n"
    "  (blocking) streams, but work of that library on a non-blocking stream is unknown here: keep the\n"
    "  array, or what that library made of it, until the work is done;\n"
    "- a CUDA graph keeps addresses, not references: keep the arrays as long as the graph.";

static const char empty_doc[] =
    "empty($type, /, shape, dtype, device='cuda:0', stream=0)\n--\n\n"
    "A new array with undefined contents.\n\n"
    "Parameters\n"
    "----------\n"
    "shape : int or sequence of int\n"
    "    Up to 8 sizes.\n"
    "dtype : str\n"
    "    The name of an element type, such as ``\"float16\"``; the error for another one lists them.\n"
    "device : str\n"
    "    ``\"cuda\"`` or ``\"cuda:<index>\"``.\n"
    "stream : int\n"
    "    A CUDA stream handle, 0 for the legacy default stream. The memory comes from the device's default\n"
    "    pool in the order of this stream.\n\n"
    "Raises\n"
    "------\n"
    "TypeError, ValueError\n"
    "    If an argument is none of these.\n"
    "DeviceUnavailableError\n"
    "    If there is no such GPU.\n"
    "MemoryError\n"
    "    If its memory is used up.";

static const char from_host_doc[] =
    "from_host($type, /, array, device='cuda:0', stream=0)\n--\n\n"
    "A new array with a copy of one in host memory.\n\n"
    "The call returns when the copy is done, so the result may be used on every stream.\n\n"
    "Parameters\n"
    "----------\n"
    "array : array\n"
    "    A NumPy array, a CPU tensor or a buffer, of up to 8 dimensions and any strides.\n"
    "device : str\n"
    "    ``\"cuda\"`` or ``\"cuda:<index>\"``.\n"
    "stream : int\n"
    "    As for :meth:`empty`.\n\n"
    "Raises\n"
    "------\n"
    "TypeError\n"
    "    If ``array`` is on a GPU, or of a dtype that is not accepted.\n"
    "DeviceUnavailableError, MemoryError\n"
    "    As :meth:`empty`.";

static const char to_host_doc[] =
    "to_host($self, /)\n--\n\n"
    "A NumPy array with a copy of the contents.\n\n"
    "The host waits for all work known to be pending on the array.\n\n"
    "Raises\n"
    "------\n"
    "TypeError\n"
    "    If the dtype is bfloat16 or one of 8-bit floats and the package ml_dtypes is missing.";

static const char array_doc[] =
    "__array__($self, /, dtype=None, copy=None)\n--\n\n"
    "Raises TypeError, which says how an array is copied to the host.";

static const char reshape_doc[] =
    "reshape($self, /, *shape)\n--\n\n"
    "The same memory under another shape.\n\n"
    "Parameters\n"
    "----------\n"
    "*shape : int or sequence of int\n"
    "    Sizes of as many elements as there are; one may be -1, for what the others leave.\n\n"
    "Raises\n"
    "------\n"
    "ValueError\n"
    "    If the number of elements differs.";

static const char cuda_interface_doc[] =
    "Version 3 of the CUDA array interface, a dict.\n\n"
    "Absent (AttributeError) for bfloat16 and 8-bit floats, which it cannot express; DLPack can.";

static const char dlpack_doc[] =
    "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
    "A DLPack capsule for ``from_dlpack``, as the array API standard describes.";

static const char dlpack_device_doc[] =
    "__dlpack_device__($self, /)\n--\n\n"
    "The DLPack device, (2, index of the GPU).";

#endif
