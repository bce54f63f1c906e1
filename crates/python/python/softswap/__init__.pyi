from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal

import numpy.typing as npt

class Pool:
    def __init__(
        self,
        memory: str | int = "1G",
        swap: str | Iterable[str] = "/var/tmp",
        *,
        encrypt: bool = True,
    ) -> None: ...
    def __enter__(self) -> Pool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def close(self) -> None: ...
    def empty(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike = ..., order: Literal["C", "F"] = "C"
    ) -> npt.NDArray[Any]: ...
    def zeros(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike = ..., order: Literal["C", "F"] = "C"
    ) -> npt.NDArray[Any]: ...
    def numpy(self) -> AbstractContextManager[Pool]: ...
    def advise(
        self,
        array: npt.NDArray[Any],
        advice: Literal["willneed", "cold", "dontneed", "sequential", "random"],
    ) -> None: ...
    def set_memory(self, memory: str | int) -> None: ...
    def stats(self) -> dict[str, int]: ...

def command() -> str: ...
def load_ipython_extension(ipython: Any) -> None: ...
