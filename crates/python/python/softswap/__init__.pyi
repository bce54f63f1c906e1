import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, SupportsIndex

import numpy.typing as npt

class SwapError(OSError, ValueError): ...

class Pool:
    def __init__(
        self,
        memory: str | SupportsIndex | None = None,
        swap: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = "/var/tmp",
        *,
        encrypt: bool = True,
        guard_calls: bool | None = None,
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
        self,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: npt.DTypeLike = ...,
        order: Literal["C", "F"] = "C",
    ) -> npt.NDArray[Any]: ...
    def zeros(
        self,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: npt.DTypeLike = ...,
        order: Literal["C", "F"] = "C",
    ) -> npt.NDArray[Any]: ...
    def numpy(self, at_least: int = 65536) -> AbstractContextManager[Pool]: ...
    def advise(
        self,
        array: npt.NDArray[Any],
        advice: Literal["willneed", "cold", "dontneed", "sequential", "random", "normal"],
    ) -> None: ...
    def pinned(self, array: npt.NDArray[Any]) -> AbstractContextManager[npt.NDArray[Any]]: ...
    def set_memory(self, memory: str | SupportsIndex) -> None: ...
    def stats(self) -> dict[str, int]: ...

def command() -> str: ...
def load_ipython_extension(ipython: Any) -> None: ...
