"""`Described`: the columns of a query's answer and the types of its parameters, before there are values for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Described:
    """The columns of a query's answer, and the type of each parameter, as its place shows it.

    ``outputs``: the numbers of parameters that are columns of the answer by themselves, with the places of these.
    """

    columns: pa.Schema
    parameters: tuple[pa.DataType, ...]
    outputs: Mapping[int, int]
