"""Counts in words, the same in every room."""

from __future__ import annotations


def many(count: int, word: str) -> str:
    """`1 core`, `2 cores`, `1,024 CPUs`; a word that ends in s, x, z, ch or sh takes -es, one in
    y after a consonant -ies."""
    if count == 1:
        return f"1 {word}"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{count:,} {word[:-1]}ies"
    return f"{count:,} {word}{'es' if word.endswith(('s', 'x', 'z', 'ch', 'sh')) else 's'}"
