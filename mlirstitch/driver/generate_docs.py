"""Write the documents that are drawn from the code: ``python -m mlirstitch.driver.generate_docs [--check] [FOLDER]``.

A document is one entry of :data:`DOCUMENTS`: its file name under ``docs/`` and the function that returns its text.
``--check`` writes nothing and fails if a file differs from what would be written.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from mlirstitch.dialects.stitch import ATTRIBUTES
from mlirstitch.driver.cli_documentation import cli_markdown
from mlirstitch.driver.command_options import flag_of
from mlirstitch.driver.pass_documentation import PassDocumentation, document_passes
from mlirstitch.options import CompileOptions

_NOTICE = "<!-- Written by python -m mlirstitch.driver.generate_docs (make docs); do not edit. -->"
_PLACES = {"normalize": "Normalisation", "stitching": "Stitching", "partitioning": "Partitioning"}


def passes_document() -> str:
    """docs/passes.md: every Python pass with its options, by the folder it stands in."""
    lines = [
        "# Passes",
        _NOTICE,
        "",
        "Passes written in Python, as they are named in pipeline texts and as flags of `mlirstitch-opt`. Passes of",
        "MLIR may stand beside them in every pipeline; `mlir-opt --help` lists those.",
    ]
    groups: dict[str, list[PassDocumentation]] = {}
    for entry in document_passes():
        groups.setdefault(_group_of(entry.module), []).append(entry)
    for title in sorted(groups):
        lines += ["", f"## {title}"]
        for entry in groups[title]:
            lines += ["", f"### {entry.name}", f"Runs on `{entry.anchor}`; defined in `{entry.module}`.", ""]
            lines += [entry.summary]
            lines += ["", entry.description] if entry.description else []
            if entry.options:
                lines += ["", "| option | type | default | meaning |", "|---|---|---|---|"]
                lines += [
                    f"| `{option.name}` | {option.type} | {option.default} | {_meaning(option.doc, option.choices)} |"
                    for option in entry.options
                ]
    return "\n".join(lines) + "\n"


def options_document() -> str:
    """docs/options.md: the options of a compilation with flag and environment variable."""
    lines = [
        "# Options of a compilation",
        _NOTICE,
        "",
        "Every option is a keyword of `mlirstitch.compile`, a flag of `mlirstitch compile` and a variable of the",
        "environment. The keyword or flag wins over the variable, the variable over the default.",
        "",
        "| keyword | flag | variable | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for field in dataclasses.fields(CompileOptions):
        default = "empty" if field.default == "" else str(field.default)
        meaning = _meaning(field.metadata["doc"], field.metadata["choices"])
        lines.append(
            f"| `{field.name}` | `{flag_of(field.name)}` | `MLIRSTITCH_{field.name.upper()}` | {default} | {meaning} |"
        )
    return "\n".join(lines) + "\n"


def stitch_attributes_document() -> str:
    """docs/stitch-attributes.md: the attributes of the stitch dialect."""
    lines = [
        "# Attributes of the stitch dialect",
        _NOTICE,
        "",
        "Discardable attributes on upstream ops: IR that carries them parses in any mlir-opt of the same LLVM release.",
        "`mlirstitch/dialects/stitch.py` holds the accessors and the verifier.",
        "",
        "| attribute | on | type | meaning |",
        "|---|---|---|---|",
    ]
    for attribute in ATTRIBUTES:
        places = ", ".join(f"`{place}`" if "." in place.split()[0] else place for place in attribute.places)
        meaning = _meaning(attribute.doc, attribute.choices)
        lines.append(f"| `{attribute.name}` | {places} | {attribute.codec.name} | {meaning} |")
    return "\n".join(lines) + "\n"


def cli_document() -> str:
    """docs/cli.md: the commands with their options, examples and exit codes."""
    return cli_markdown(_NOTICE)


DOCUMENTS: dict[str, Callable[[], str]] = {
    "cli.md": cli_document,
    "options.md": options_document,
    "passes.md": passes_document,
    "stitch-attributes.md": stitch_attributes_document,
}


def outdated(folder: Path) -> list[str]:
    """The names of the documents in ``folder`` that differ from what the code says, or are missing."""
    found = []
    for name, text in DOCUMENTS.items():
        path = folder / name
        if not path.exists() or path.read_text() != text():
            found.append(name)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the documents; the exit code is 1 if ``--check`` finds a difference."""
    import mlirstitch.lowering
    import mlirstitch.passes  # noqa: F401  registers the passes

    arguments = list(sys.argv[1:] if argv is None else argv)
    check = "--check" in arguments
    folders = [argument for argument in arguments if argument != "--check"]
    folder = Path(folders[0]) if folders else Path(__file__).parents[2] / "docs"
    old = outdated(folder)
    if check:
        for name in old:
            print(f"{folder / name} is out of date; run make docs", file=sys.stderr)
        return 1 if old else 0
    for name in old:
        (folder / name).write_text(DOCUMENTS[name]())
        print(f"wrote {folder / name}", file=sys.stderr)
    return 0


def _group_of(module: str) -> str:
    parts = module.split(".")
    return _PLACES.get(parts[2], "Lowering" if parts[1] == "lowering" else "Others") if len(parts) > 2 else "Others"


def _meaning(doc: str, choices: Sequence[object]) -> str:
    text = " ".join(doc.split()).replace("|", "\\|") or "see above"
    return f"{text}; one of {', '.join(f'`{choice}`' for choice in choices)}" if choices else text


if __name__ == "__main__":
    sys.exit(main())
