"""Programs as JSON: what is encoded is decoded, fits the schema, and survives a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_bundles import TARGET, add_bundle, add_ptx, buffer, counter_bundle, launch, library_call, program

from mlirstitch.errors import BundleError
from mlirstitch.runtime import read_bundle
from mlirstitch.runtime.bundle import Bundle
from mlirstitch.runtime.dtypes import DTYPES
from mlirstitch.runtime.manifest import check_schema, decode_program, encode_program
from mlirstitch.runtime.program import Copy, Program

NAMES = st.text(st.characters(codec="utf-8"), max_size=6)


@st.composite
def programs(draw) -> Program:
    """Sound programs: a chain over random buffers, each written before it is read."""
    buffers = []
    shapes = st.lists(st.integers(0, 5), max_size=3)
    for _ in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(DTYPES))
        buffers.append(buffer(len(buffers), "input", draw(NAMES), draw(shapes), dtype))
    steps, arena = [], 0
    for _ in range(draw(st.integers(0, 6))):
        origin = draw(st.sampled_from(buffers))
        role = draw(st.sampled_from(["temporary", "output", "persistent"]))
        offset = arena if role == "temporary" else None
        fresh = buffer(len(buffers), role, draw(NAMES), origin.shape, origin.dtype, offset)
        buffers.append(fresh)
        arena += -(-fresh.bytes // 256) * 256 if role == "temporary" else 0
        if draw(st.booleans()):
            steps.append(Copy(origin.id, fresh.id, fresh.bytes, tuple(draw(st.lists(NAMES, max_size=2)))))
        else:
            grid = draw(st.tuples(*[st.integers(1, 7)] * 3))
            other = draw(st.sampled_from(buffers[: origin.id + 1]))
            steps.append(
                launch(
                    buffers,
                    "add",
                    [(origin.id, "read"), (other.id, "read"), (fresh.id, "write")],
                    grid=grid,
                    block=draw(st.tuples(*[st.integers(1, 8)] * 3)),
                    shared_bytes=draw(st.integers(0, 2**40)),
                    cooperative=draw(st.booleans()),
                    thread_block_cluster=grid,
                    source=tuple(draw(st.lists(NAMES, max_size=2))),
                )
            )
    return program(buffers, steps)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_random_programs_survive_encoding_and_fit_the_schema(p):
    data = json.loads(json.dumps(encode_program(p)))
    assert decode_program(data) == p
    check_schema(manifest([data]))


@settings(max_examples=40, deadline=None)
@given(p=programs(), form=st.sampled_from(["b", "b.zip"]))
def test_random_programs_survive_a_bundle(tmp_path_factory, p, form):
    path = tmp_path_factory.mktemp("programs") / form
    Bundle(TARGET, (p,), {"kernels": add_ptx("add")}).write(path)
    assert read_bundle(path).programs == (p,)


def manifest(encoded: list) -> dict:
    return {
        "format": "mlirstitch-bundle",
        "version": 1,
        "digest": "0" * 64,
        "producer": {"name": "mlirstitch", "version": "0"},
        "target": TARGET,
        "options": {},
        "calling": {},
        "modules": [],
        "weights": None,
        "files": {"report.json": "0" * 64},
        "programs": encoded,
    }


def places(data, path=()):
    """Paths of every value inside JSON data."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


JUNK = [None, -1, 1.5, "junk", [], {}, True, [[]], 10**30]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_field_replaced_by_junk_is_a_bundle_error_naming_it_or_decodes(data):
    call = library_call("matmul", [(buffer(k, "input", "", [2, 2]), "read") for k in range(3)], strides=[1])
    source = data.draw(st.sampled_from([add_bundle().programs[0], counter_bundle().programs[0], program([], [call])]))
    encoded = json.loads(json.dumps(encode_program(source)))
    path = data.draw(st.sampled_from([p for p in places(encoded) if p]))
    target = encoded
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = data.draw(st.sampled_from(JUNK))
    place = ""
    try:
        decoded = decode_program(encoded, "here")
    except BundleError as error:
        place = str(error)
        decoded = None
    assert place.startswith("here") if decoded is None else encode_program(decoded) == encoded


def test_the_decoder_and_the_schema_refuse_the_same_fields():
    """A field missing from, or added to, any object of a program is refused by both."""
    call = library_call("matmul", [(buffer(k, "input", "", [2, 2]), "read") for k in range(3)])
    base = counter_bundle().programs[0]
    encoded = encode_program(Program(base.name, base.devices, base.signature, 0, 0, base.buffers, (*base.steps, call)))
    encoded = json.loads(json.dumps(encoded))
    check_schema(manifest([encoded]))
    objects = [p for p in places(encoded) if isinstance(_at(encoded, p), dict) and p[-1:] != ("attributes",)]
    assert len(objects) > 15
    for path in objects:
        for key in [*_at(encoded, path), None]:
            broken = json.loads(json.dumps(encoded))
            if key is None:
                _at(broken, path)["surplus"] = 1
            else:
                del _at(broken, path)[key]
            with pytest.raises(BundleError):
                decode_program(broken)
            with pytest.raises(BundleError, match=r"manifest.json: \$"):
                check_schema(manifest([broken]))


def _at(data, path):
    for key in path:
        data = data[key]
    return data


def test_the_example_steps_of_the_documentation_decode():
    text = (Path(__file__).parents[2] / "docs/manifest.md").read_text()
    blocks = [block for block in text.split("```")[1::2] if block.startswith('json\n{"op"')]
    assert [json.loads(block[5:])["op"] for block in blocks] == ["launch", "library", "library", "copy"]
    data = {
        "name": "main",
        "devices": [0],
        "signature": {"inputs": [], "outputs": [], "mutated": []},
        "arena_bytes": 0,
        "temporary_bytes": 0,
        "buffers": [],
        "steps": [json.loads(block[5:]) for block in blocks],
    }
    assert encode_program(decode_program(data)) == data
    check_schema(manifest([data]))
