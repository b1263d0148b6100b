"""``mlirstitch explain --html``: one page without any other file, from the bundle alone."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from mlirstitch.driver.report.page.view import page_view, short_line
from mlirstitch.driver.report.quantities import byte_size
from mlirstitch.runtime.bundle import Bundle, read_bundle


def explain_html(path: str | Path) -> str:
    """The page of the bundle at ``path``; equal bundles give equal bytes. Raises BundleError."""
    return render(read_bundle(path), Path(path).name)


def render(bundle: Bundle, title: str) -> str:
    """The page of a bundle. Every text from the bundle is escaped."""
    environment = Environment(
        loader=PackageLoader("mlirstitch.driver.report.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    view = page_view(bundle, title)
    environment.filters["bytes"] = byte_size
    environment.filters["short"] = lambda line: short_line(line, view.files)
    return environment.get_template("page.html.j2").render(page=view)
