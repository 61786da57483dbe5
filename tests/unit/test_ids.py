"""Slurm's ids of arrays and their elements: reported one by one, asked and cancelled together."""

from __future__ import annotations

from hpcncf.slurm.query import elements, masters, together


def test_an_array_is_asked_about_once() -> None:
    assert masters(["12_0", "12_1", "9"]) == ["12", "9"]


def test_elements_that_share_a_row_are_distinguished() -> None:
    assert elements("66_[2-4,7%2]") == ["66_2", "66_3", "66_4", "66_7"]
    assert elements("66_2") == ["66_2"]


def test_elements_of_an_array_are_one_word_and_back() -> None:
    many = ["12_3", "9", "12_0", "12_1", "12_7", "12_0"]
    assert together(many) == ["12_[0-1,3,7]", "9"]
    assert elements("12_[0-1,3,7]") == ["12_0", "12_1", "12_3", "12_7"]
    assert together(["8_1"]) == ["8_1"]
