#!/usr/bin/env python3
"""Tutti's OFRecord files and protobuf's: tutti-ofrecord reads what protobuf writes by its schema, and vice versa.

usage: protobuf.py TUTTI_OFRECORD; exits with 77 if Python has no protobuf (pip install protobuf).
"""
import os
import random
import struct
import subprocess
import sys
import tempfile

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError:
    print("Python has no protobuf")
    sys.exit(77)

KINDS = ("bytes", "float", "double", "int32", "int64")


def make_schema(packed):
    """Classes of the messages; `packed` false: lists are written unpacked, and each record has field 99, which
    readers do not know."""
    file = descriptor_pb2.FileDescriptorProto(name="ofrecord%d.proto" % packed, package="test%d" % packed, syntax="proto2")
    field = descriptor_pb2.FieldDescriptorProto
    for kind in KINDS:
        message = file.message_type.add(name=kind.title() + "List")
        value = message.field.add(name="value", number=1, label=field.LABEL_REPEATED, type=getattr(field, "TYPE_" + kind.upper()))
        if kind != "bytes":
            value.options.packed = packed
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(KINDS, 1):
        feature.field.add(name=kind + "_list", number=number, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE,
                          type_name=".%s.%sList" % (file.package, kind.title()), oneof_index=0)
    record = file.message_type.add(name="OFRecord")
    entry = record.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE,
                    type_name=".%s.Feature" % file.package)
    record.field.add(name="feature", number=1, label=field.LABEL_REPEATED, type=field.TYPE_MESSAGE,
                     type_name=".%s.OFRecord.FeatureEntry" % file.package)
    if not packed:
        record.field.add(name="other", number=99, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(file.package + ".OFRecord"))


def random_values(dice, kind):
    count = dice.randrange(0, 9)
    if kind == "bytes":
        return [dice.randbytes(dice.randrange(0, 9)) for _ in range(min(count, 1))]
    if kind == "float":
        return [struct.unpack("f", struct.pack("f", dice.uniform(-1e6, 1e6)))[0] for _ in range(count)]
    if kind == "double":
        return [float("%.9g" % dice.uniform(-1e6, 1e6)) for _ in range(count)]
    bits = 31 if kind == "int32" else 63
    return [dice.choice((0, -1, 2 ** bits - 1, -2 ** bits, dice.randrange(-2 ** bits, 2 ** bits))) for _ in range(count)]


def write_records(path, schema, dice, count, other):
    """Yields, for each record, {name: (kind, values)}."""
    expected = []
    with open(path, "wb") as file:
        for _ in range(count):
            record, content = schema(), {}
            for name in dice.sample(("images", "labels", "encoded", "class/label", "x"), dice.randrange(1, 6)):
                kind = dice.choice(KINDS)
                values = random_values(dice, kind)
                getattr(record.feature[name], kind + "_list").SetInParent()
                getattr(record.feature[name], kind + "_list").value.extend(values)
                content[name] = (kind, values)
            if other:
                record.other = "not known to readers"
            data = record.SerializeToString()
            file.write(struct.pack("<q", len(data)) + data)
            expected.append(content)
    return expected


def line_of(name, kind, values):
    """The line of tutti-ofrecord show for a feature of at most 8 values."""
    text = "  %s: %s_list of %d" % (name, kind, len(values))
    if kind == "bytes":
        data = values[0] if values else b""
        return text + ", %d bytes:" % len(data) + "".join(" %d" % byte for byte in data)
    form = " %.9g" if kind in ("float", "double") else " %d"
    return text + (":" if values else "") + "".join(form % value for value in values)


def check_reading(program, folder):
    for packed in (True, False):
        path = os.path.join(folder, "part-%d" % packed)
        expected = write_records(path, make_schema(packed), random.Random(7 + packed), 300, not packed)
        shown = subprocess.run([program, "show", path, "1000"], capture_output=True, text=True, check=True).stdout
        records = shown.split("record ")[1:]
        assert len(records) == len(expected), "%d records, not %d" % (len(records), len(expected))
        for number, (text, content) in enumerate(zip(records, expected)):
            got, want = sorted(text.splitlines()[1:]), sorted(line_of(name, *content[name]) for name in content)
            assert got == want, "record %d:\n%s\nexpected\n%s" % (number, "\n".join(got), "\n".join(want))
        checked = subprocess.run([program, "check", path], capture_output=True, text=True, check=True).stdout
        assert ": 300 records" in checked and "DAMAGED" not in checked, checked
        with open(path, "rb") as file:
            data = bytearray(file.read())
        with open(path, "wb") as file:
            file.write(data[:-3])
        done = subprocess.run([program, "check", path], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and path + ": record 299 at offset" in done.stderr, done


def check_writing(program, folder):
    data = os.path.join(folder, "cifar")
    os.mkdir(data)
    content = bytes((7 * i + i // 3073) % 256 if i % 3073 else i // 3073 % 10 for i in range(25 * 3073))
    with open(os.path.join(data, "data_batch_1.bin"), "wb") as file:
        file.write(content)
    schema = make_schema(True)
    for extra in ([], ["--bytes", "--image", "images", "--label", "labels"]):
        out = os.path.join(folder, "new", "parts%d" % len(extra))
        subprocess.run([program, "pack", "--from", "cifar10", "--data", data, "--out", out, "--parts", "4", "--suffix-length", "5"]
                       + extra, stdout=subprocess.DEVNULL, check=True)
        sample = 0
        for part in range(4):
            with open(os.path.join(out, "part-%05d" % part), "rb") as file:
                while header := file.read(8):
                    record = schema.FromString(file.read(struct.unpack("<q", header)[0]))
                    image = record.feature["images" if extra else "img_raw"]
                    label = record.feature["labels" if extra else "label"]
                    planes = content[sample * 3073 + 1:(sample + 1) * 3073]
                    pixels = bytes(planes[c * 1024 + p] for p in range(1024) for c in range(3))
                    assert list(label.int32_list.value) == [sample % 10]
                    if extra:
                        assert list(image.bytes_list.value) == [pixels]
                    else:
                        assert all(abs(a - b / 255) < 1e-6 for a, b in zip(image.float_list.value, pixels, strict=True))
                    sample += 1
        assert sample == 25
        again = subprocess.run([program, "pack", "--from", "cifar10", "--data", data, "--out", out, "--suffix-length", "5"],
                               capture_output=True, text=True, check=False)
        assert again.returncode == 1 and "part-00000: File exists" in again.stderr, again


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_reading(sys.argv[1], folder)
        check_writing(sys.argv[1], folder)
    print("all well")


if __name__ == "__main__":
    main()
