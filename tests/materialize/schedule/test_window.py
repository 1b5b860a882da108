"""Windows are open exactly when the wall clock of their place says so."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.materialize.schedule import DAYS, Window, window

MINUTE_MS = 60_000
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia")
HOURS = st.tuples(st.integers(0, 23), st.integers(0, 59)).map(lambda at: f"{at[0]:02}:{at[1]:02}")


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Return a window."""
    begin = draw(HOURS)
    end = draw(HOURS.filter(lambda other: other != begin))
    days = draw(st.lists(st.sampled_from(DAYS), max_size=3, unique=True))
    return window(f"{begin}-{end} {','.join(days)} {draw(st.sampled_from(ZONES))}")


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


# Around days on which clocks are set: forward and back, by half an hour, and over a whole day (Apia, 2011).
STARTS = [_ms(day) for day in ("2024-03-30", "2024-10-26", "2024-04-06", "2024-10-05", "2011-12-29", "2024-06-01")]


@given(windows(), st.sampled_from(STARTS), st.integers(0, 2 * 24 * 60))
@example(window("02:10-02:20 Europe/Berlin"), _ms("2024-10-27T00:20"), 0)
@example(window("01:40-01:50 Australia/Lord_Howe"), _ms("2024-04-06T14:55"), 0)
def test_it_opens_at_the_first_minute_that_is_inside(within: Window, start: int, minutes: int) -> None:
    """Damage: a transaction begins outside the window, or the status names a moment at which none begins."""
    now = start + minutes * MINUTE_MS
    truth = now
    while not within.open(truth):  # the naive truth: minute by minute
        truth += MINUTE_MS
    assert within.opens(now) == truth


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    """Damage: what is to run at night after Friday runs in the night before it."""
    night = window("22:00-06:00 fri UTC")
    assert [night.open(_ms(at)) for at in ("2024-06-07T21:59", "2024-06-07T22:00", "2024-06-08T05:59")] == [
        False,
        True,
        True,
    ]
    assert [night.open(_ms(at)) for at in ("2024-06-07T05:00", "2024-06-08T06:00", "2024-06-08T22:00")] == [False] * 3


def test_an_hour_that_is_skipped_is_in_no_window_and_one_that_comes_twice_is_in_it_twice() -> None:
    """Damage: on two days of the year a transaction begins an hour off."""
    early = window("02:00-03:00 Europe/Berlin")
    assert early.opens(_ms("2024-03-31T00:00")) == _ms("2024-04-01T00:00")
    assert [early.open(_ms(f"2024-10-27T0{hour}:30")) for hour in (0, 1)] == [True, True]


@pytest.mark.parametrize(
    ("text", "after", "opens"),
    [
        ("02:10-02:20 Europe/Berlin", "2024-10-27T00:20", "2024-10-27T01:10"),  # its second 02:10
        ("01:30-02:10 Europe/Berlin", "2024-10-27T00:10", "2024-10-27T01:00"),  # the clock is set back into it
        ("02:10-02:20 Europe/Berlin", "2024-10-27T01:20", "2024-10-28T01:10"),
        ("01:30-02:10 Europe/Berlin", "2024-03-31T01:00", "2024-03-31T23:30"),  # 02:00 is 03:00
        ("02:30-03:30 Europe/Berlin", "2024-03-31T00:59", "2024-03-31T01:00"),  # the clock is set forward into it
        ("02:30-02:40 sun Europe/Berlin", "2024-03-31T00:00", "2024-04-07T00:30"),
        ("10:00-11:00 fri Pacific/Apia", "2011-12-29T22:00", "2012-01-05T20:00"),  # that Friday was left out
        ("23:30-02:10 sat Europe/Berlin", "2024-10-27T00:10", "2024-10-27T01:00"),  # of Saturday's night
    ],
)
def test_it_opens_by_the_wall_clock_of_a_day_on_which_clocks_are_set(text: str, after: str, opens: str) -> None:
    """Damage: once a year a transaction waits for the next day's window although today's is open once more."""
    assert window(text).opens(_ms(after)) == _ms(opens)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("08:00-18:00", "write hours"),
        ("8-18 UTC", "write hours"),
        ("08:00-08:00 UTC", "end at another time"),
        ("24:00-08:00 UTC", "begin before 24:00"),
        ("08:00-24:01 UTC", "24:00 at the latest"),
        ("08:00-18:00 mon-xyz UTC", "no day of mon"),
        ("08:00-18:00 Europe/Atlantis", "no time zone 'Europe/Atlantis'"),
        ("08:00-18:00 ../etc/passwd", "no time zone"),
    ],
)
def test_what_is_no_window_is_refused_with_what_it_can_be(text: str, said: str) -> None:
    """Damage: a typing error is a window that never opens."""
    with pytest.raises(ValueError, match=said):
        window(text)
