"""`python -m cluster.models.template_renderer FD`: renders one chat template, as messages on a socket ask.

A template comes with a model's files and is foreign code. It runs in jinja's sandbox, in this process alone, which
has limited memory and processor time, no credentials in its environment, and ends with its owner.
"""

import json
import resource
import signal
import sys
from contextlib import suppress
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEXT_CHARS_MAX = 64 * 2**20
"""The limit of a rendered conversation; the longest prompts have some ten million characters."""
_REASON_CHARS_MAX = 1000


class _Environment(ImmutableSandboxedEnvironment):
    # Jinja computes all other operators on constants while it compiles. These operators may be too much work.
    intercepted_binops = frozenset(("*", "**", "%", "+"))


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here they are ordinary text."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own way

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def main(owner: Connection) -> None:
    """Answer the template's source and then one set of variables after the other, until the owner closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The owner handles Ctrl-C in a terminal.
    # The default action ends the process in the middle of any C function; Python would wait for its return.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with suppress(EOFError, OSError):
        first = json.loads(owner.recv_bytes())
        _limit_memory(first["memory_bytes"])
        template: Template | None = None
        while True:
            signal.setitimer(signal.ITIMER_PROF, first["cpu_s"])
            try:
                if template is None:
                    template, reply = _compiled(first["source"])
                else:
                    reply = {"text": _rendered(template, json.loads(owner.recv_bytes()))}
            except MemoryError:
                reply = {"stopped": "it needs too much memory"}
            except TemplateError as error:
                reply = {"refused": str(error)[:_REASON_CHARS_MAX]}
            except (EOFError, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - a template is foreign code and may fail in any way
                reply = {"failed": f"{type(error).__name__}: {error}"[:_REASON_CHARS_MAX]}
            owner.send_bytes(json.dumps(reply).encode())
            if template is None:
                return


def _compiled(source: str) -> tuple[Template, dict[str, Any]]:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        optimized=False,
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    environment.filters["tojson"] = _to_json
    takes_tools = any(name.name == "tools" for name in environment.parse(source).find_all(nodes.Name))
    return environment.from_string(source), {"takes_tools": takes_tools}


def _rendered(template: Template, variables: dict[str, Any]) -> str:
    parts, chars = [], 0
    for part in template.generate(variables):
        chars += len(part)
        if chars > TEXT_CHARS_MAX:
            raise MemoryError
        parts.append(part)
    return "".join(parts)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without jinja's own escapes, which are meant for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _limit_memory(bytes_max: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        bytes_max = min(bytes_max, hard)
    with suppress(ValueError, OSError):  # Not every system knows this limit.
        resource.setrlimit(resource.RLIMIT_AS, (bytes_max, bytes_max))


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
