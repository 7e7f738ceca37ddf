"""What an action reads of a process: a thread's mask with the CPUs that are offline for now."""

from __future__ import annotations

import os

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.pin.proc import down, lasting, mask_of, whole_mask

STATUS = "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{}\nMems_allowed_list:\t0-1\n"


@pytest.mark.parametrize(
    ("seen", "listed", "offline", "whole"),
    [
        ("0-5,7", "0-7", "6", "0-7"),
        ("5", "5,7", "6-7", "5,7"),
        ("5", "5", "6-7", "5"),
        # Of what the status says beyond, only CPUs that are there: a guest has masks of 256.
        ("0-3", "0-255", "4", "0-4"),
        # Changed between the two looks: what is online is the first one's.
        ("0-1", "2-3", "3", "0-1,3"),
    ],
)
def test_offline_cpus_are_part_of_a_mask(seen: str, listed: str, offline: str, whole: str) -> None:
    found = whole_mask(CpuSet.parse(seen), STATUS.format(listed), CpuSet.parse(offline))
    assert str(found) == whole


@pytest.mark.parametrize(
    ("mask", "online", "offline", "lasts"),
    [
        ("0-5,7", "0-5,7", "6", "0-7"),
        ("0-7", "0-7", "", "0-7"),
        ("0-4", "0-5,7", "6", "0-4"),
        ("7", "0-5,7", "6", "7"),
        ("0-1", "", "", "0-1"),
    ],
)
def test_a_thread_bound_to_nothing_gets_what_comes_back(
    mask: str, online: str, offline: str, lasts: str
) -> None:
    found = lasting(CpuSet.parse(mask), CpuSet.parse(online), CpuSet.parse(offline))
    assert str(found) == lasts


def test_a_status_without_the_line_adds_nothing() -> None:
    assert str(whole_mask(CpuSet.parse("0-1"), "Name:\tx\n", CpuSet.parse("2"))) == "0-1"


def test_our_own_mask_is_the_systems() -> None:
    assert not down() & CpuSet.of(os.sched_getaffinity(0))
    own = mask_of(os.getpid())
    assert own is not None and own - down() == CpuSet.of(os.sched_getaffinity(0))
