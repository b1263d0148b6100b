"""``mlirstitch simulate --html``: one page without any other file."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from mlirstitch.driver.partition.figures import Figures
from mlirstitch.driver.partition.page.view import page_data
from mlirstitch.driver.partition.partitioned import Partitioned
from mlirstitch.driver.report.quantities import byte_size, seconds


def simulate_html(made: Partitioned, found: Figures) -> str:
    """The page of a partitioned function; equal programs give equal bytes. Every text from the program is escaped."""
    environment = Environment(
        loader=PackageLoader("mlirstitch.driver.partition.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["bytes"] = byte_size
    environment.filters["seconds"] = seconds
    return environment.get_template("timeline.html.j2").render(figures=found, data=page_data(made))
