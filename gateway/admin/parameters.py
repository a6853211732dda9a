"""What routes and console pages share of HTTP: parameters of addresses."""

from typing import Annotated

from fastapi import Path, Query
from pydantic import AwareDatetime

from gateway.admin.fields import TEXT
from gateway.pages import CURSOR_MAX, PAGE_MAX

Named = Annotated[str, Path(min_length=1, max_length=200, pattern=TEXT)]
OptionalText = Annotated[str | None, Query(max_length=200, pattern=TEXT)]
PageCursor = Annotated[str | None, Query(max_length=CURSOR_MAX, description="`next` of the previous page.")]
PageLimit = Annotated[int, Query(ge=1, le=PAGE_MAX)]
Since = Annotated[AwareDatetime | None, Query(description="RFC 3339, with its offset from UTC.")]
