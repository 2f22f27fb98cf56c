"""Shards as arrays of numpy and PyTorch, and their arrays as shards: at the same address, and valid as long as any
user holds them.

usage: dlpack.py libtutti.so. PyTorch is skipped if it is not installed.
"""
import ctypes
import gc
import importlib.util
import sys
import unittest

import numpy as np

TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", "float16", "bfloat16", "float32",
         "float64", "float8_e4m3", "float8_e5m2"]  # in the order of tutti_type, checked by a test
TORCH_NAMES = {"float8_e4m3": "float8_e4m3fn"}
HOST = 1  # TUTTI_MEMORY_HOST, likewise
pointer = ctypes.c_void_p


class Sbp(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("dim", ctypes.c_int), ("reduction", ctypes.c_int)]


class Layout(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("placement", pointer), ("sbp", pointer), ("type", ctypes.c_int),
                ("ndims", ctypes.c_int), ("shape", ctypes.POINTER(ctypes.c_int64)), ("rule", ctypes.c_int), ("cuts", pointer),
                ("name", ctypes.c_char_p)]


class Local(ctypes.Structure):
    _fields_ = [("data", pointer), ("ndims", ctypes.c_int), ("shape", ctypes.c_int64 * 8), ("first", ctypes.c_int64 * 8),
                ("count", ctypes.c_size_t)]


api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [pointer, ctypes.c_char_p, pointer]
api.PyCapsule_GetPointer.restype = pointer
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]


def check(status):
    if status != 0:
        raise RuntimeError(tutti.tutti_last_error().decode())


class Given:
    """The argument of from_dlpack: a shard, which can be taken once."""

    def __init__(self, tensor):
        managed = pointer()
        check(tutti.tutti_tensor_to_dlpack(tensor, ctypes.byref(managed)))
        self.managed = managed.value

    def __dlpack__(self, **_):
        return api.PyCapsule_New(self.managed, b"dltensor_versioned", None)

    def __dlpack_device__(self):
        return 1, 0


def layout_of(kind, shape):
    extents = (ctypes.c_int64 * 8)(*shape)
    return Layout(ctypes.sizeof(Layout), placement, None, TYPES.index(kind), len(shape), extents, 0, None, None)


def create(kind, shape):
    tensor = pointer()
    check(tutti.tutti_tensor_create(ctypes.byref(layout_of(kind, shape)), ctypes.byref(tensor)))
    return tensor


def take(kind, other, shape):
    """Tutti's tensor made from another library's."""
    try:
        capsule = other.__dlpack__(max_version=(1, 0))
    except TypeError:  # numpy before 2.1
        capsule = other.__dlpack__()
    versioned = api.PyCapsule_IsValid(capsule, b"dltensor_versioned")
    name = b"dltensor_versioned" if versioned else b"dltensor"
    call = tutti.tutti_tensor_from_dlpack if versioned else tutti.tutti_tensor_from_dlpack_unversioned
    tensor = pointer()
    check(call(ctypes.byref(layout_of(kind, shape)), pointer(api.PyCapsule_GetPointer(capsule, name)), ctypes.byref(tensor)))
    used = b"used_" + name  # the capsule no longer owns it
    kept_names.append(used)
    api.PyCapsule_SetName(capsule, used)
    return tensor


def local(tensor):
    found = Local()
    check(tutti.tutti_tensor_local(tensor, ctypes.byref(found)))
    return found


class Numpy(unittest.TestCase):
    kinds = [kind for kind in TYPES if not kind.startswith(("bfloat16", "float8"))]

    def test_types_are_in_this_order(self):
        for index, kind in enumerate(TYPES):
            self.assertEqual(tutti.tutti_type_name(index).decode(), kind)

    def test_shards_are_seen_without_a_copy(self):
        for kind in self.kinds:
            tensor = create(kind, (3, 4))
            array = np.from_dlpack(Given(tensor))
            self.assertEqual((array.ctypes.data, array.shape, array.dtype), (local(tensor).data, (3, 4), np.dtype(kind)))
            array[...] = np.arange(12).reshape(3, 4) % 2
            tutti.tutti_tensor_destroy(tensor)
            self.assertEqual(array.sum(), 6)  # the memory stays

    def test_arrays_are_taken_without_a_copy(self):
        for kind in self.kinds:
            array = np.arange(12).reshape(3, 4).astype(kind)
            references = sys.getrefcount(array)
            tensor = take(kind, array, (3, 4))
            self.assertEqual(local(tensor).data, array.ctypes.data)
            self.assertGreater(sys.getrefcount(array), references)
            tutti.tutti_tensor_destroy(tensor)
            gc.collect()
            self.assertEqual(sys.getrefcount(array), references, kind)  # the deleter was called, once

    def test_views_are_copied(self):
        array = np.arange(48, dtype="int32").reshape(6, 8)
        for view in (array.T, array[::2, ::-1], array[:, 3], np.broadcast_to(array[0], (4, 8)).copy(order="F")):
            tensor = take("int32", view, view.shape)
            held = local(tensor)
            copy = np.ctypeslib.as_array(ctypes.cast(held.data, ctypes.POINTER(ctypes.c_int32)), view.shape)
            self.assertFalse(np.shares_memory(copy, array))
            np.testing.assert_array_equal(copy, view)
            tutti.tutti_tensor_destroy(tensor)

    def test_another_type_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "those of float32 have 2 of 32"):
            take("float32", np.zeros(3, "int32"), (3,))


@unittest.skipIf(importlib.util.find_spec("torch") is None, "PyTorch is not installed")
class Torch(unittest.TestCase):
    def test_both_ways_without_a_copy(self):
        import torch
        for kind in TYPES:
            name = TORCH_NAMES.get(kind, kind)
            if not hasattr(torch, name):
                continue
            tensor = create(kind, (3, 4))
            seen = torch.from_dlpack(Given(tensor))
            self.assertEqual((seen.data_ptr(), tuple(seen.shape), seen.dtype), (local(tensor).data, (3, 4), getattr(torch, name)))
            try:
                again = take(kind, seen, (3, 4))
            except BufferError as refusal:  # PyTorch does not export 8-bit floats before 2.9
                self.assertTrue(kind.startswith("float8"), refusal)
                continue
            self.assertEqual(local(again).data, seen.data_ptr())
            tutti.tutti_tensor_destroy(again)
            tutti.tutti_tensor_destroy(tensor)
            self.assertEqual(seen.to(torch.float64).mul(0).nan_to_num(0).sum().item(), 0)  # the memory stays


def start():
    comm, found = pointer(), pointer()
    check(tutti.tutti_comm_create_world(ctypes.byref(comm)))
    check(tutti.tutti_placement_create(comm, HOST, None, (ctypes.c_int * 1)(1), 1, ctypes.byref(found)))
    return found


if __name__ == "__main__":
    tutti = ctypes.CDLL(sys.argv.pop(1))
    tutti.tutti_last_error.restype = tutti.tutti_type_name.restype = ctypes.c_char_p
    kept_names = []  # capsules keep no copies
    placement = start()
    unittest.main()
