"""When a sample ends: at a stop id, or with the token that completes a stop string."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlvlm.errors import ConfigError

_UNKNOWN = "\ufffd"  # what an incomplete UTF-8 sequence decodes to


class StopTable:
    """Which ids end a sample, and which may complete a stop string, looked up at once for all rows.

    A stop string may stand across tokens, so whether it is there is only known from text. Decoding every row at every
    token would cost more than a small model's forward; so each id's own text says once whether it could be the last
    piece of a stop string, and only rows that just drew such an id are decoded.

    Args:
        tokenizer: decodes ids; used only where there are stop strings.
        vocab_size: V, the number of logits.
        stop_ids: ids that end a sample.
        stop: strings that end a sample; looked for in the response alone, special tokens included.

    Raises ``ConfigError`` for a stop id outside the vocabulary.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int,
        *,
        stop_ids: Collection[int] = (),
        stop: Sequence[str] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        for index in stop_ids:
            if not 0 <= index < vocab_size:
                raise ConfigError(
                    f"stop id {index} is outside the vocabulary, whose ids run from 0 to {vocab_size - 1}."
                )
        self._ends = _mark(vocab_size, stop_ids, device)
        self._finishers = None
        if self._stop:
            texts = _decode(tokenizer, [[index] for index in range(min(vocab_size, len(tokenizer)))])
            self._finishers = _mark(
                vocab_size, (i for i, text in enumerate(texts) if may_finish(text, self._stop)), device
            )
            # each token is at least one byte of the text; the rest keeps odd decoding at the cut away from the match
            self._tail = max(len(string.encode()) for string in self._stop) + 4

    def stopped(self, ids: Tensor, rows: Tensor, length: int) -> Tensor:
        """Which samples end with their newest token, [N] bool.

        Args:
            ids: [S, T] all ids of each response.
            rows: [N] the rows of ``ids`` that have just drawn a token.
            length: tokens that those have drawn, the newest included.
        """
        newest = ids[rows, length - 1]
        ended = self._ends[newest]
        if self._finishers is None:
            return ended
        candidates = self._finishers[newest].nonzero().squeeze(-1)
        if not len(candidates):
            return ended
        tails = ids[rows[candidates], max(0, length - self._tail) : length]
        texts = _decode(self._tokenizer, tails.tolist())
        found = [any(string in text for string in self._stop) for text in texts]
        return ended.index_put((candidates,), torch.tensor(found, device=ended.device) | ended[candidates])


def may_finish(text: str, stop: Sequence[str]) -> bool:
    """Whether a token with this text can complete one of the strings: it holds it, or starts with the end of it.

    The text of a token alone may lack a leading space, or hold half a character: such tokens may finish anything that fits.
    """
    if _UNKNOWN in text:
        return True
    pieces = (text, " " + text)
    return any(
        string in piece or any(piece.startswith(string[cut:]) for cut in range(1, len(string)))
        for string in stop
        for piece in pieces
    )


def _decode(tokenizer: Any, rows: list[list[int]]) -> list[str]:
    return tokenizer.batch_decode(rows, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _mark(size: int, ids: Iterable[int], device: torch.device | str) -> Tensor:
    table = torch.zeros(size, dtype=torch.bool)
    table[list(ids)] = True
    return table.to(device)
