"""What NetHack's hero sees, told plainly: a cell at a time, as a slow check of the fast one."""

from collections import Counter
from collections.abc import Iterator

import numpy as np


def plainly_seen(clear: np.ndarray, hero: tuple[int, int]) -> np.ndarray:
    """The cells in sight of a hero who stands on a clear cell. The outermost columns must not be clear."""
    seen = np.zeros_like(clear)
    for quadrant in _quadrants(clear, seen, hero):
        quadrant.look()
    return seen


def most_fingers(clear: np.ndarray, hero: tuple[int, int]) -> int:
    """The most fingers of light that begin at different cells of a row, over all rows and quarters."""
    most = 0
    for quadrant in _quadrants(clear, np.zeros_like(clear), hero):
        quadrant.look()
        begins = {(row, left) for row, left, _ in quadrant.fingers}
        most = max(most, *Counter(row for row, _ in begins).values())
    return most


def _quadrants(clear: np.ndarray, seen: np.ndarray, hero: tuple[int, int]) -> Iterator["_Quadrant"]:
    """The four parts of the map, turned so that the hero looks down and to the right, from column 0."""
    for step in (1, -1):
        for side in (1, -1):
            part = np.s_[hero[0] :: step, hero[1] :: side]
            # NetHack's map has one more column on the left, which is never shown.
            yield _Quadrant(clear[part], seen[part], last=len(clear[part][0]) - (1 if side > 0 else 0))


class _Quadrant:
    def __init__(self, clear: np.ndarray, seen: np.ndarray, last: int) -> None:
        self.clear, self.seen, self.last = clear, seen, last
        self.fingers: list[tuple[int, int, int]] = []

    def look(self) -> None:
        last = self.end_of_run(0, 0)
        self.seen[0, : last + 1] = True
        self.look_along(1, 0, last)

    def look_along(self, row: int, left: int, mark: int) -> None:
        """A finger of light: row `row - 1` was seen from `left` to `mark`, and here its light falls."""
        if row >= len(self.clear):
            return
        self.fingers.append((row, left, mark))
        while left <= mark:
            end = self.end_of_run(row, left)
            if not self.clear[row, left]:
                if end > mark:
                    end = mark + 1 if self.clear[row - 1, mark] else mark
                self.seen[row, left : end + 1] = True
                left = end + 1
                continue
            if left > 0:
                while left <= end and not self.line_is_clear(row, left):
                    left += 1
                if left >= self.last:
                    return  # NetHack would mark the last column as seen, which is solid rock
                if left >= end:
                    left = end
                    continue
            right = end
            if mark < end:
                right = mark
                while right <= end and self.line_is_clear(row, right):
                    right += 1
                right -= 1
            if left > right:
                continue
            if left == right == 0 and not self.clear[row, 1]:
                right = 1
            self.seen[row, left : right + 1] = True
            self.look_along(row + 1, left, right)
            left = right + 1

    def end_of_run(self, row: int, left: int) -> int:
        """The last of the blocked cells that begin here; of clear cells, the blocked one behind them."""
        rest = self.clear[row, left:]
        if rest[0]:
            return left + int(np.argmin(rest))
        return left + (int(np.argmax(rest)) - 1 if rest.any() else len(rest) - 1)

    def line_is_clear(self, row: int, column: int) -> bool:
        """Whether the cells strictly between the hero and this one are, along Bresenham's line."""
        long, short = max(row, column), min(row, column)
        error, across = 2 * short - long, 0
        for along in range(1, long):
            if error >= 0:
                across += 1
                error -= 2 * long
            error += 2 * short
            if not self.clear[(along, across) if row > column else (across, along)]:
                return False
        return True
