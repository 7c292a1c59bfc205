from smista.caches import ENTRIES_MAX, SMALL_BYTES, cached_if_small


def test_what_is_small_is_remembered_and_what_is_large_is_not() -> None:
    calls: list[str] = []

    @cached_if_small(len)
    def shout(text: str) -> str:
        calls.append(text)
        return text.upper()

    small, large = "a" * SMALL_BYTES, "a" * (SMALL_BYTES + 1)
    for _ in range(3):
        assert shout(small) == small.upper()
        assert shout(large) == large.upper()
    assert calls.count(small) == 1
    assert calls.count(large) == 3


def test_only_so_many_are_remembered() -> None:
    calls: list[int] = []

    @cached_if_small(lambda number: 1)
    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    for number in range(ENTRIES_MAX + 1):
        assert double(number) == 2 * number
    assert double(0) == 0
    assert calls.count(0) == 2
