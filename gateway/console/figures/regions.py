"""The picture's parts that change while somebody looks."""

from gateway.console.figures.placing import Sketch
from gateway.console.live import Region


def picture_regions(cluster: Sketch) -> list[Region]:
    """For pages that include `cluster/picture.html`; what lies around the parts keeps its state."""
    values = {"cluster": cluster}
    return [
        Region("cluster-drawing", "cluster/drawing.html", values),
        Region("cluster-table", "cluster/as_table.html", values),
    ]
