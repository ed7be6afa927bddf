"""The pictures of one batch, each once, and processed pictures kept for when they come again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor

from rlvlm.batch import Media
from rlvlm.data.media import Picture
from rlvlm.data.prompts import PromptFamily

Pixels = dict[str, Tensor]


class PixelCache:
    """Processed pictures by content key, the most recently used ones, up to a number of bytes."""

    def __init__(self, budget: int) -> None:
        self.budget, self.used = budget, 0
        self._kept: OrderedDict[str, Pixels] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Pixels | None:
        """The tensors, or ``None``."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def put(self, key: str, pixels: Pixels) -> None:
        """Keeps the tensors, and drops what was used longest ago when the budget is passed."""
        size = _bytes(pixels)
        with self._lock:
            if size > self.budget or key in self._kept:
                return
            self._kept[key] = pixels
            self.used += size
            while self.used > self.budget:
                _, dropped = self._kept.popitem(last=False)
                self.used -= _bytes(dropped)


def _bytes(pixels: Pixels) -> int:
    return sum(tensor.element_size() * tensor.nelement() for tensor in pixels.values())


class MediaTable:
    """Collects the pictures of a batch: equal ones become one entry; :meth:`process` then makes their tensors, each at most once."""

    def __init__(self, family: PromptFamily, cache: PixelCache) -> None:
        self._family, self._cache = family, cache
        self._index: dict[str, int] = {}
        self.media: list[Media] = []

    def add(self, pictures: Sequence[Picture]) -> list[int]:
        """Each picture's place in the table; raises ``DataError`` for one that can't be decoded, and then adds none."""
        for picture in pictures:
            if picture.key not in self._index and picture.key not in self._cache:
                picture.decode()
        places = []
        for picture in pictures:
            if picture.key not in self._index:
                self._index[picture.key] = len(self.media)
                self.media.append(Media(picture.key, self._family.target_size(picture.size), picture))
            places.append(self._index[picture.key])
        return places

    def process(self) -> None:
        """Fills in every entry's tensors, those that the cache lacks by one call of the image processor."""
        missing = []
        for media in self.media:
            found = self._cache.get(media.key)
            if found is None:
                missing.append(media)
            else:
                media.pixels.update(found)
        if missing:
            for media, pixels in zip(missing, self._family.process_all([m.image for m in missing]), strict=True):
                media.pixels.update(pixels)
                self._cache.put(media.key, pixels)
