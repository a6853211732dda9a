"""The picture's parts that change while a page is viewed."""

from gateway.console.figures.layout import Sketch
from gateway.console.live import Region


def picture_regions(cluster: Sketch) -> list[Region]:
    """Return the regions for pages that include `cluster/picture.html`; surrounding elements keep their state."""
    values = {"cluster": cluster}
    return [
        Region("cluster-drawing", "cluster/drawing.html", values),
        Region("cluster-table", "cluster/as_table.html", values),
    ]
