"""All cases of a run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.fuzz.case import Case
from tests.fuzz.clusters import cluster_cases
from tests.fuzz.engines import engine_cases
from tests.fuzz.files import file_cases
from tests.fuzz.rundirs import head_cases, rundir_cases
from tests.fuzz.specs import Mutation, pairs, singles
from tests.fuzz.ways import WAYS, spec_cases

#: Mutations of specs by way, drawn by the seed; of those whose field has no case yet, one each comes first.
DRAWN = {"kwargs": 1000, "yaml": 350, "json": 150, "airflow": 250, "prefect": 250}
PAIRS = 100
#: A case of the other ways costs more: so many of each.
OTHERS = 300


def all_cases(seed: int, share: float = 1.0) -> list[Case]:
    """`share`: of all, the same for each way."""
    draw = random.Random(seed)
    found: list[Case] = []
    mutations = [*singles(), *pairs(seed, PAIRS)]
    for way in WAYS:
        found += _first(spec_cases(way, _spread(mutations, draw)), round(DRAWN[way] * share))
    for cases in (cluster_cases(), engine_cases(), rundir_cases(), head_cases()):
        found += draw.sample(every := list(cases), min(len(every), round(OTHERS * share)))
    return [*found, *_first(iter(draw.sample(files := list(file_cases()), len(files))), round(len(files) * share))]


def _spread(mutations: Sequence[Mutation], draw: random.Random) -> list[Mutation]:
    """In an order in which each field comes once before any comes again."""
    by_field: dict[tuple[str, ...], list[Mutation]] = {}
    for mutation in draw.sample(mutations, len(mutations)):
        by_field.setdefault((mutation.base, *mutation.fields), []).append(mutation)
    rounds = max(map(len, by_field.values()))
    return [group[number] for number in range(rounds) for group in by_field.values() if number < len(group)]


def _first(cases: Iterator[Case], number: int) -> list[Case]:
    return [case for _, case in zip(range(number), cases, strict=False)]
