"""A user's loss that takes an object of outputs for a tensor is told what to write."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from potluck.errors import ModelError
from potluck.model.user_functions import Field, call_function

LABELS = torch.tensor([0, 1])


def an_answer(*shape: int) -> Any:
    return OrderedDict(hidden=torch.zeros(2, 3), logits=torch.zeros(*shape or (2, 3)))


def refusal(field: Field, function: Any, outputs: Any, labels: torch.Tensor = LABELS) -> str:
    with pytest.raises(ModelError) as caught:
        call_function(field, function, outputs, labels)
    return str(caught.value)


def test_what_works_is_given_back() -> None:
    outputs = {"logits": torch.zeros(2, 3)}
    assert call_function("loss", lambda o, y: (o, y), outputs, LABELS) == (outputs, LABELS)


def test_the_same_function_of_the_logits_is_proposed() -> None:
    loss = refusal("loss", F.cross_entropy, an_answer())
    assert "loss=lambda outputs, labels: F.cross_entropy(outputs['logits'], labels)" in loss
    assert "lambda outputs, labels: nn.MSELoss()(outputs['logits'], labels)" in refusal(
        "loss", nn.MSELoss(), an_answer(), torch.zeros(2, 3)
    )


def test_of_words_the_axes_of_samples_and_positions_are_joined() -> None:
    said = refusal("loss", F.cross_entropy, an_answer(2, 4, 3), torch.zeros(2, 4, dtype=torch.long))
    assert "F.cross_entropy(outputs['logits'].flatten(0, 1), labels.flatten())" in said


def test_a_lambda_is_told_what_to_take_and_a_metric_is_no_keyword() -> None:
    said = refusal("reduce", lambda outputs, labels: outputs.argmax(1), an_answer())
    assert "take what the reduce needs: outputs['logits'] (" in said
    metric = refusal("metric", F.cross_entropy, an_answer())
    assert "needs: lambda outputs, labels: F.cross_entropy(" in metric


def test_an_error_that_is_not_about_the_outputs_is_the_users_own() -> None:
    def wrong(outputs: Any, labels: Any) -> None:
        raise TypeError("labels must be strings")

    with pytest.raises(TypeError, match="labels must be strings"):
        call_function("loss", wrong, an_answer(), LABELS)
    with pytest.raises(AttributeError):
        call_function("loss", lambda outputs, labels: outputs.logits, torch.zeros(2, 3), LABELS)
