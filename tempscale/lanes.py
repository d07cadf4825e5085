"""SIMD lanes for numba: sixteen numbers in one value, each lane for another pair of texts.

A compiler rarely vectorises over sixteen interleaved matrices, because it must assume that arrays overlap. `Lanes` makes
this explicit: inside a numba function `load` and `store` move sixteen adjacent elements of an array, and +, −, ×, / and the
functions below apply to all of them. LLVM compiles them to the widest instructions of the processor. Lanes never interact,
so the result of a lane does not depend on its position.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

LANES = 16
"""Numbers in one value: one AVX-512 register of float32, two of AVX2, four of NEON."""
_CONTRACT = ("contract", "nsz")
"""A product and a sum may be fused into one instruction; nothing else is reordered."""


class Lanes(types.Type):
    """Sixteen float32 or float64 as a numba type."""

    def __init__(self, scalar: Any) -> None:
        self.scalar = scalar
        super().__init__(name=f"Lanes({scalar})")

    def llvm(self) -> Any:
        """The LLVM vector type."""
        return ir.VectorType(ir.FloatType() if self.scalar == types.float32 else ir.DoubleType(), LANES)

    def suffix(self) -> str:
        """The name of the type in LLVM's intrinsics."""
        return f"v{LANES}f{32 if self.scalar == types.float32 else 64}"


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, lanes.llvm())


_F32, _F64 = Lanes(types.float32), Lanes(types.float64)


def _of(array: Any) -> Lanes:
    return _F32 if array.dtype == types.float32 else _F64


def _address(context: Any, builder: Any, array: Any, lanes: Lanes, args: Any) -> Any:
    data = context.make_array(array)(context, builder, args[0]).data
    return builder.bitcast(builder.gep(data, [args[1]]), lanes.llvm().as_pointer())


@intrinsic
def load(typing: Any, array: Any, offset: Any) -> Any:
    """Sixteen adjacent elements of a flat array, from `offset` on."""
    lanes = _of(array)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_address(context, builder, array, lanes, args), align=4)

    return lanes(array, types.intp), generate


@intrinsic
def store(typing: Any, array: Any, offset: Any, value: Any) -> Any:
    """Write sixteen adjacent elements of a flat array, from `offset` on."""
    lanes = _of(array)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _address(context, builder, array, lanes, args), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


def _arithmetic(operation: Callable[..., Any], instruction: str) -> None:
    @type_callable(operation)
    def _typed(context: Any) -> Any:
        return lambda a, b: a if isinstance(a, Lanes) and a == b else None

    for lanes in (_F32, _F64):

        @lower_builtin(operation, lanes, lanes)
        def _lowered(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(*args, flags=_CONTRACT)


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")


def _elementwise(name: str, arguments: int) -> Any:
    """An LLVM intrinsic applied to each lane."""

    def call(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = signature.return_type
        kind = ir.FunctionType(lanes.llvm(), [lanes.llvm()] * arguments)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.{lanes.suffix()}"), args)

    if arguments == 1:
        return intrinsic(lambda typing, a: (a(a), call))
    return intrinsic(lambda typing, a, b: (a(a, b), call))


sqrt = _elementwise("sqrt", 1)
fabs = _elementwise("fabs", 1)
copysign = _elementwise("copysign", 2)
maximum = _elementwise("maxnum", 2)


@intrinsic
def splat(typing: Any, like: Any, value: Any) -> Any:
    """One number in all sixteen lanes, in the type of `like`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = builder.insert_element(ir.Constant(like.llvm(), ir.Undefined), args[1], ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))

    return like(like, like.scalar), generate


@intrinsic
def where_positive(typing: Any, condition: Any, a: Any, b: Any) -> Any:
    """For each lane, `a` if the condition is above 0, else `b`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(condition.llvm(), [0.0] * LANES)
        return builder.select(builder.fcmp_ordered(">", args[0], zero), args[1], args[2])

    return a(condition, a, b), generate


@intrinsic
def widen(typing: Any, a: Any) -> Any:
    """Float32 lanes as float64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(args[0], _F64.llvm())

    return _F64(a), generate


@intrinsic
def largest(typing: Any, a: Any) -> Any:
    """The largest of the sixteen numbers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        scalar = ir.FloatType() if a == _F32 else ir.DoubleType()
        name = f"llvm.vector.reduce.fmax.{a.suffix()}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(scalar, [a.llvm()]), name)
        return builder.call(function, args)

    return a.scalar(a), generate
