"""Concept balance: pictures near a vocabulary of concepts, weighted against how frequent these are."""

from rlvlm.data.concept_balance.balance import BalanceSettings, balance
from rlvlm.data.concept_balance.embeddings import ClipModel, embed_pictures, embed_texts, read_embeddings
from rlvlm.data.concept_balance.nearest import nearest_concepts
from rlvlm.data.concept_balance.resample import concept_counts, coverage, gini, inverse_weights, resample
from rlvlm.data.concept_balance.vocabulary import Vocabulary, read_vocabulary

__all__ = [
    "BalanceSettings",
    "ClipModel",
    "Vocabulary",
    "balance",
    "concept_counts",
    "coverage",
    "embed_pictures",
    "embed_texts",
    "gini",
    "inverse_weights",
    "nearest_concepts",
    "read_embeddings",
    "read_vocabulary",
    "resample",
]
