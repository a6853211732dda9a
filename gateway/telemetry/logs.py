"""Log lines of this program and its libraries, in one format on stderr."""

import logging

import structlog

from cluster.nodes.process import log_sink


def configure_logs(level: str, form: str) -> None:
    """Send log lines of this program and its libraries to stderr in one format; stdout is for data."""
    number = logging.getLevelNamesMapping()[level.upper()]
    sink = log_sink()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if form == "console" else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sink),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sink)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=shared,
        )
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)
