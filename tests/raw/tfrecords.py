"""TFRecord files by the published specification, and Examples by the protobuf runtime, without the code under test."""

from __future__ import annotations

import struct
from functools import cache

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def crc32c(data):
    """Return the Castagnoli CRC, computed bit by bit from its polynomial."""
    crc = 0xFFFFFFFF
    for byte in bytes(data):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    """Return the masked CRC of TFRecord files."""
    crc = crc32c(data)
    return ((crc >> 15) + ((crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


def record(payload, check=None):
    """Return a framed record; `check` replaces the checksum of the payload."""
    length = struct.pack("<Q", len(payload))
    crc = masked(payload) if check is None else check
    return length + struct.pack("<I", masked(length)) + payload + struct.pack("<I", crc)


@cache
def messages():
    """Return the message classes of tensorflow/core/example/{feature,example}.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name, *fields, parent=file.message_type):
        made = parent.add(name=name)
        for number, (label, kind, field, type_name) in enumerate(fields, 1):
            made.field.add(name=field, number=number, type=kind, label=label, type_name=type_name or None)
        return made

    def entry(parent, value):
        made = parent.nested_type.add(name="Entry")
        made.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
        made.field.add(name="value", number=2, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_OPTIONAL, type_name=value)
        made.options.map_entry = True

    many, one = kinds.LABEL_REPEATED, kinds.LABEL_OPTIONAL
    nested = kinds.TYPE_MESSAGE
    message("BytesList", (many, kinds.TYPE_BYTES, "value", ""))
    message("FloatList", (many, kinds.TYPE_FLOAT, "value", ""))
    message("Int64List", (many, kinds.TYPE_INT64, "value", ""))
    lists = [(one, nested, f"{kind.lower()}_list", f".t.{kind}List") for kind in ("Bytes", "Float", "Int64")]
    feature = message("Feature", *lists)
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    entry(message("Features", (many, nested, "feature", ".t.Features.Entry")), ".t.Feature")
    message("Example", (one, nested, "features", ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClassesForFiles(["example.proto"], pool)


def fill(feature, values):
    """Set the values of a feature: bytes, floats or integers."""
    values = list(values)
    if values and isinstance(values[0], bytes):
        feature.bytes_list.value.extend(values)
    elif values and isinstance(values[0], float):
        feature.float_list.value.extend(values)
    else:
        feature.int64_list.value.extend(map(int, values))


def example(features):
    """Return an Example with bytes, floats (Python floats, not integers) or integers by name."""
    made = messages()["t.Example"]()
    for name, values in features.items():
        fill(made.features.feature[name], values)
    return made.SerializeToString(deterministic=True)
