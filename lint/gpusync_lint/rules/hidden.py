"""GS601 to GS603: objects of torch that read device values internally."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import Device, Kind, Value
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, is_constant, keyword, method, positional
from gpusync_lint.syntax.parameters import with_defaults

if TYPE_CHECKING:
    from collections.abc import Iterator

_NORMAL = ("Normal", "LogNormal", "HalfNormal")
"""Distributions that draw with `torch.normal`."""
_NEVER_SILENT = frozenset(
    {
        "Chi2", "ContinuousBernoulli", "FisherSnedecor", "HalfCauchy", "HalfNormal", "LKJCholesky",
        "LowRankMultivariateNormal", "Multinomial", "OneHotCategorical", "OneHotCategoricalStraightThrough",
        "RelaxedBernoulli", "RelaxedOneHotCategorical", "StudentT", "Wishart",
    }
)  # fmt: skip
"""Distributions that create another one that validates its arguments, copy a number to the device, or factorize."""


class Scaler(Rule):
    """`GradScaler.step` with an optimizer that is not fused, and `GradScaler.get_scale`."""

    nodes = (ast.Call,)
    calls = ("step", "get_scale")
    barriers = ("grad-scaler-step", "grad-scaler-scale")
    VALID: ClassVar = ("scaler.update()", "scaler.step(fused)")
    INVALID: ClassVar = ("scaler.step(sgd)", "scaler.get_scale()")

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        called = method(node)
        if called not in ("step", "get_scale") or not isinstance(node.func, ast.Attribute):
            return
        receiver = context.value(node.func.value)
        if receiver.kind is not Kind.SCALER or receiver.argument("enabled").const is False:
            return
        if called == "get_scale":
            yield Report("grad-scaler-scale", node, Confidence.MEDIUM, highlight_name=True)
            return
        args = positional(node)
        optimizer = context.value(args[0]) if args else None
        if optimizer is not None and not (
            optimizer.kind is Kind.OPTIMIZER and optimizer.argument("fused").const is True
        ):
            yield Report(
                "grad-scaler-step", node, Confidence.MEDIUM, highlight_name=True, heat=self._heat(receiver, context)
            )

    def _heat(self, scaler: Value, context: RuleContext) -> Heat | None:
        """`GUARDED` instead of `STEP` if a setting that the code does not show enables the scaler: it is often off."""
        enabled = dict(scaler.made_with or ()).get("enabled")
        shown = enabled is None or enabled.const is True
        is_step = not shown and context.heat(context.function, context.statement) is Heat.STEP
        return Heat.GUARDED if is_step else None


_VALIDATES_NOTHING = re.compile(r"\.set_default_validate_args\(\s*(?:value\s*=\s*)?False")
"""A call that switches validation off for all distributions."""


def _is_false_by_default(node: ast.expr | None, function: ast.AST) -> bool:
    """Whether an expression is a parameter of a function with the default False."""
    return (
        isinstance(node, ast.Name)
        and isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        and any(
            arg.arg == node.id and default is not None and is_constant(default, False)
            for arg, default in with_defaults(function.args)
        )
    )


class DistributionChecks(Rule):
    """Creating a distribution, or computing a probability, with validation enabled (the default)."""

    nodes = (ast.Call,)
    calls = ("torch.distributions.*", "log_prob", "class.__call__", "__init__")
    barriers = ("distribution-validation", "distribution-construction")
    VALID: ClassVar = (
        "torch.distributions.Normal(v, v, validate_args=False)",
        "torch.distributions.Normal(0.0, 1.0, validate_args=False)",
        "torch.distributions.MultivariateNormal(v, scale_tril=x, validate_args=False)",
        (
            "d = torch.distributions.Normal(v, v, validate_args=False)\n"
            "torch.distributions.Independent(d, 1, validate_args=False)"
        ),
    )
    INVALID: ClassVar = (
        "d = torch.distributions.Normal(v, v)",
        "d = torch.distributions.Normal(v, 1.0, validate_args=False)",
        "d = torch.distributions.StudentT(v, v, v, validate_args=False)",
        "d = torch.distributions.MultivariateNormal(v, x, validate_args=False)",
        "d = torch.distributions.Categorical(logits=x)\nd.log_prob(tgt)",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        text = context.file.text
        off = "set_default_validate_args" in text and _VALIDATES_NOTHING.search(text) is not None
        dotted = context.qualified_name(node.func)
        if isinstance(node.func, ast.Attribute) and method(node) == "__init__":
            if not off:
                yield from self._of_base(node, node.func.value, context)
        elif dotted.startswith("torch.distributions."):
            made = context.value(node)
            if off or made.argument("validate_args").const is False:
                yield from self._construction(made, node, context)
            elif dotted.rpartition(".")[2][:1].isupper():
                yield from self._report(made, node, context, False)
        elif off:
            return
        elif isinstance(node.func, ast.Attribute) and method(node) == "log_prob":
            made = context.value(node.func.value)
            if made.kind is Kind.UNKNOWN and "validate_args" not in context.file.text:
                values = [context.value(arg) for arg in positional(node)]
                if any(value.on_device for value in values):  # a distribution, which may not validate its arguments
                    yield Report("distribution-validation", node, Confidence.LOW, highlight_name=True)
            elif made.kind is Kind.DISTRIBUTION and made.made_with is None and "validate_args" in context.file.text:
                return  # the arguments are not known, and may say that it does not validate
            elif context.value(node.func).kind is not Kind.FUNCTION:  # not a method that the project overrides
                yield from self._report(made, node, context, True)
        elif context.value(node.func).kind is Kind.CLASS and not context.has_own_init(context.value(node)):
            yield from self._report(context.value(node), node, context, False)

    def _report(self, made: Value, node: ast.Call, context: RuleContext, tail: bool) -> Iterator[Report]:
        if (
            (made.kind is Kind.DISTRIBUTION or context.derives_from(made, "torch.distributions."))
            and made.argument("validate_args").const is not False
            and made.device >= Device.ASSUMED
        ):
            confidence = Confidence.HIGH if made.device > Device.ASSUMED else Confidence.MEDIUM
            yield Report("distribution-validation", node, confidence, highlight_name=tail)

    def _of_base(self, node: ast.Call, base: ast.expr, context: RuleContext) -> Iterator[Report]:
        """`super().__init__(loc, scale)` in a class that derives from a distribution."""
        is_distribution = context.value(base).kind is Kind.DISTRIBUTION
        if not is_distribution and not context.qualified_name(base).startswith("torch.distributions."):
            return
        validated = keyword(node, "validate_args")
        if context.value(validated).const is False or _is_false_by_default(validated, context.function.node):
            return
        given = [context.value(arg) for arg in (*positional(node), *(one.value for one in node.keywords))]
        confidences = [context.confidence(value) for value in given if value.on_device]
        if confidences:
            is_high = Confidence.HIGH in confidences
            confidence = Confidence.HIGH if is_high else Confidence.MEDIUM
            yield Report("distribution-validation", node, confidence, highlight_name=True)

    def _construction(self, made: Value, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        if made.kind is not Kind.DISTRIBUTION or made.device < Device.ASSUMED:
            return
        given = [context.value(arg) for arg in positional(node)]
        given += [context.value(one.value) for one in node.keywords if one.arg != "validate_args"]
        # Numbers beside tensors are copied to the device of the tensors.
        mixed = any(value.on_device for value in given) and any(value.kind is Kind.HOST for value in given)
        factored = made.ref == "MultivariateNormal" and keyword(node, "scale_tril") is None
        if mixed or factored or made.ref in _NEVER_SILENT:
            confidence = Confidence.HIGH if made.device > Device.ASSUMED else Confidence.MEDIUM
            yield Report("distribution-construction", node, confidence)


class DistributionSample(Rule):
    """`sample()` of a distribution that draws with `torch.normal`, which checks the standard deviations."""

    nodes = (ast.Call,)
    calls = ("sample", "sample_n")
    barriers = ("normal-sample",)
    VALID: ClassVar = (
        "torch.distributions.Normal(v, v, validate_args=False).rsample()",
        "torch.distributions.Categorical(logits=x, validate_args=False).sample()",
        "torch.distributions.Normal(0.0, 1.0).sample()",
    )
    INVALID: ClassVar = (
        "d = torch.distributions.Normal(v, v, validate_args=False)\nd.sample()",
        "torch.distributions.Independent(torch.distributions.Normal(v, v), 1).sample()",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        if method(node) not in self.calls or not isinstance(node.func, ast.Attribute):
            return
        made = context.value(node.func.value)
        drawn = made.ref if made.kind is Kind.DISTRIBUTION else None
        if made.kind is Kind.INSTANCE and context.value(node.func).kind is not Kind.FUNCTION:
            drawn = next((name for name in _NORMAL if context.derives_from(made, f"torch.distributions.{name}")), None)
        if drawn in _NORMAL and made.device >= Device.ASSUMED:
            confidence = Confidence.HIGH if made.device is Device.GPU else Confidence.MEDIUM
            yield Report("normal-sample", node, confidence, highlight_name=True)


class HiddenStep(Rule):
    """`ReduceLROnPlateau.step(tensor)`, `LBFGS.step(closure)`, `AveragedModel.update_parameters(model)`."""

    nodes = (ast.Call,)
    calls = ("step", "update_parameters")
    barriers = ("plateau-step", "closure-optimizer", "averaged-model")
    VALID: ClassVar = ("plateau.step(0.5)", "sgd.step()", "fused.step()")
    INVALID: ClassVar = ("plateau.step(s)", "torch.optim.swa_utils.AveragedModel(model).update_parameters(model)")

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        args = positional(node)
        called = method(node)
        if called not in ("step", "update_parameters") or not args or not isinstance(node.func, ast.Attribute):
            return
        receiver = context.value(node.func.value)
        if called == "update_parameters":
            if receiver.ref == "AveragedModel":
                yield Report("averaged-model", node, Confidence.MEDIUM, highlight_name=True)
        elif receiver.kind is Kind.OPTIMIZER and receiver.ref == "LBFGS":
            yield Report("closure-optimizer", node, Confidence.MEDIUM, highlight_name=True)
        elif receiver.kind is Kind.SCHEDULER and receiver.ref == "ReduceLROnPlateau":
            confidence = context.confidence(context.value(args[0]))
            if confidence is not None:
                yield Report("plateau-step", node, confidence, highlight_name=True)


class AttentionMask(Rule):
    """A call of `nn.TransformerEncoder` with a mask and without `is_causal`."""

    nodes = (ast.Call,)
    calls = ("torch.nn.TransformerEncoder.__call__",)
    barriers = ("attention-mask-check",)
    VALID: ClassVar = ("torch.nn.TransformerEncoder(layer, 1).to(dev)(x)",)
    INVALID: ClassVar = ("torch.nn.TransformerEncoder(layer, 1).to(dev)(x, mask=m)",)

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        called = context.value(node.func)
        if called.kind is not Kind.MODULE or called.ref != "torch.nn.TransformerEncoder":
            return
        args = positional(node)
        mask = keyword(node, "mask") or (args[1] if len(args) > 1 else None)
        if keyword(node, "is_causal") is None and context.confidence(context.value(mask)) is not None:
            yield Report("attention-mask-check", node, Confidence.MEDIUM)
