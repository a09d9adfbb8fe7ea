#!/usr/bin/env python3
"""Shortens arrays of a safetensors file to their first rows.

usage: trim.py IN OUT PREFIX=ROWS ...

Every array whose name starts with PREFIX keeps its first ROWS entries along its first axis; the
other arrays and the metadata are copied as they are.
"""
import json
import struct
import sys


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def rows_kept(name, rules):
    return next((rows for prefix, rows in rules if name.startswith(prefix)), None)


def trim(header, data, rules):
    """A new header and the pieces of data it describes, in the old order."""
    new, pieces, offset = {}, [], 0
    if "__metadata__" in header:
        new["__metadata__"] = header["__metadata__"]
    arrays = [item for item in header.items() if item[0] != "__metadata__"]
    for name, entry in sorted(arrays, key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        shape = list(entry["shape"])
        rows = rows_kept(name, rules)
        if rows is not None and rows < shape[0]:
            end = begin + (end - begin) // shape[0] * rows
            shape[0] = rows
        pieces.append(data[begin:end])
        new[name] = {
            "dtype": entry["dtype"],
            "shape": shape,
            "data_offsets": [offset, offset + end - begin],
        }
        offset += end - begin
    return new, pieces


def write(path, header, pieces):
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(pieces)


def main(arguments):
    if len(arguments) < 3 or any("=" not in rule for rule in arguments[2:]):
        sys.exit(__doc__.strip())
    rules = []
    for rule in arguments[2:]:
        prefix, rows = rule.split("=")
        rules.append((prefix, int(rows)))
    write(arguments[1], *trim(*read(arguments[0]), rules))


if __name__ == "__main__":
    main(sys.argv[1:])
