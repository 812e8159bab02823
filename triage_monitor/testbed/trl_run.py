"""A real GRPOTrainer run of TRL on a CPU: a tiny model made in code, an NVFP4-emulated sampler, a live monitor.

The model has 2 layers of width 64 with random weights; the task is to answer in vowels, reward = share of vowels among
the letters answered. The sampler is a copy of the policy whose block linears run W4A4 (one scale a row of activations,
1x16 blocks of weights), refreshed before every rollout and handed to TRL as `rollout_func`; the learner stays float32.
The loss is TriageGRPOTrainer's. Nothing is downloaded. Left out: vLLM, which needs a GPU.
"""

from __future__ import annotations

import os
import string
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from triage_monitor.errors import ConfigError
from triage_monitor.trainer.client import Monitor
from triage_monitor.trainer.linear import QuantizedLinear
from triage_monitor.trainer.nvfp4 import QuantOptions, fake_quantize

END, PROMPT_LETTERS, LONGEST = 0, 4, 24
GROUP, PROMPTS = 8, 4
VOWELS = frozenset("aeiou")
_WORDS = ["<end>", *string.ascii_lowercase, *(f"<{i}>" for i in range(5))]


@dataclass(frozen=True, slots=True)
class TrlPlan:
    updates: int
    directory: Path
    seed: int = 0
    learning_rate: float = 1e-3


def train(plan: TrlPlan, monitor: Monitor, at_step: Callable[[int], None]) -> list[dict[str, Any]]:
    """Runs the updates; TRL's own log, one entry an update. `at_step` is called before each."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers and datasets; nothing here is of the user's making
        trainer = _trainer(plan, monitor, at_step)
        trainer.train()
    return [entry for entry in trainer.state.log_history if "reward" in entry]


def _trainer(plan: TrlPlan, monitor: Monitor, at_step: Callable[[int], None]) -> Any:
    try:
        import transformers
        from datasets import Dataset
        from datasets.utils import logging as datasets_logging
        from trl import GRPOConfig
    except ImportError as error:
        raise ConfigError("the TRL run needs trl: pip install 'triage-monitor[trl]'") from error

    from triage_monitor.trainer.adapters import trl

    transformers.logging.set_verbosity_error()
    datasets_logging.disable_progress_bar()
    transformers.set_seed(plan.seed)

    class Steps(transformers.TrainerCallback):  # type: ignore[misc]  # untyped base
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            at_step(state.global_step)

    letters = torch.randint(1, 27, (256, PROMPT_LETTERS), generator=torch.Generator().manual_seed(plan.seed))
    prompts = [" ".join(_WORDS[i] for i in row) for row in letters.tolist()]
    config = GRPOConfig(
        output_dir=str(plan.directory),
        use_cpu=True,
        per_device_train_batch_size=GROUP * PROMPTS // 2,
        gradient_accumulation_steps=2,
        num_generations=GROUP,
        max_completion_length=LONGEST,
        learning_rate=plan.learning_rate,
        lr_scheduler_type="constant",
        max_steps=plan.updates,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=plan.seed,
    )
    tokenizer = _tokenizer()
    trainer = trl.TriageGRPOTrainer(
        model=_model(),
        reward_funcs=_share_of_vowels,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        rollout_func=Nvfp4Rollout(tokenizer, plan.seed),
        callbacks=[Steps()],
        monitor=monitor,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(_WORDS)}, unk_token="<0>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>", unk_token="<0>")


def _model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(_WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=PROMPT_LETTERS + LONGEST,
        initializer_range=0.1,  # wide enough for a peaked distribution, where 4 bits show
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
    )
    return LlamaForCausalLM(config)


def _share_of_vowels(completions: list[str], **_: Any) -> list[float]:
    counted = [text.replace("<end>", "").split() for text in completions]
    return [sum(letter in VOWELS for letter in letters) / LONGEST for letters in counted]


class Nvfp4Rollout:
    """TRL's `rollout_func`: prompts in, token ids and the sampler's log-probs out."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self._tokenizer = tokenizer
        self._generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        sampler = _quantised(trainer.accelerator.unwrap_model(trainer.model))
        prompt_ids = torch.tensor([self._tokenizer(text)["input_ids"] for text in prompts])
        tokens, logprobs = self._decode(sampler, prompt_ids, float(trainer.args.temperature))
        ends = (tokens == END).int()
        lengths = torch.where(ends.any(1), ends.argmax(1) + 1, tokens.shape[1]).tolist()
        return {
            "prompt_ids": prompt_ids.tolist(),
            "completion_ids": [row[:n] for row, n in zip(tokens.tolist(), lengths, strict=True)],
            "logprobs": [row[:n] for row, n in zip(logprobs.tolist(), lengths, strict=True)],
        }

    def _decode(self, sampler: Any, given: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        tokens, logprobs, cache = [], [], None
        for _ in range(LONGEST):
            out = sampler(input_ids=given, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            scores = (out.logits[:, -1].float() / temperature).log_softmax(-1)
            given = torch.multinomial(scores.exp(), 1, generator=self._generator)
            tokens.append(given)
            logprobs.append(scores.gather(1, given))
        return torch.cat(tokens, 1), torch.cat(logprobs, 1)


def _quantised(policy: Any) -> Any:
    # Not a deep copy: accelerate's wrapper of `forward` would lead back to the policy.
    sampler = type(policy)(policy.config).eval()
    sampler.load_state_dict(policy.state_dict())
    rows = QuantOptions(row_scaled_activation=True)
    for layer in sampler.model.layers:
        for parent in (layer.self_attn, layer.mlp):
            for name, linear in list(parent.named_children()):
                if isinstance(linear, nn.Linear):
                    low = QuantizedLinear(
                        linear.in_features, linear.out_features, bias=False, activation=rows, weight_options=None
                    )
                    low.weight = nn.Parameter(fake_quantize(linear.weight.detach(), QuantOptions()))
                    setattr(parent, name, low)
    return sampler
