"""Log lines of a process and its libraries, in one format on stderr; stdout is for data."""

import contextlib
import io
import logging
import os
import sys
from typing import TextIO, cast

import structlog


class _LogSink(io.TextIOBase):
    """stderr as long as it can be written: logging must not fail because a reader is gone or a disk is full.

    stderr flushes each line by itself.
    """

    def write(self, text: str) -> int:
        try:
            if sys.stderr:
                sys.stderr.write(text)
        except BrokenPipeError:
            _abandon_stderr()
        except (OSError, ValueError):
            pass  # A full disk may have room for later lines; a closed stream takes nothing.
        return len(text)


def _abandon_stderr() -> None:
    """Redirect stderr to the null device after its reader has gone.

    Neither other writers nor the interpreter's last flush may fail because of it.
    """
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


def log_sink() -> TextIO:
    """Return the stream for log lines."""
    return cast("TextIO", _LogSink())


def configure_logs(style: str) -> None:
    """Set up logs of this process and its libraries. `style` is "json:LEVEL", or "console:LEVEL" for people."""
    form, _, level = style.partition(":")
    number = logging.getLevelNamesMapping()[(level or "info").upper()]
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
