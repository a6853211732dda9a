"""A sink that keeps everything written to it."""


class Collected:
    def __init__(self) -> None:
        self.content = b""

    def write(self, data: bytes) -> None:
        self.content += data

    is_full = False

    async def drain(self) -> None:
        pass
