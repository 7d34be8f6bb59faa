"""C++ for the two entry points of every operator in the table, and for every entry point that is refused."""

from __future__ import annotations

from collections.abc import Iterable

from ascend.fakecann.table import OPERATORS, Operator

# type in the table → type on the stack, and how phase one lifts the argument out of it
_TYPES = {
    "Tensor": ("const aclTensor*", 'call.tensor({0}_, "{0}")'),
    "Tensor?": ("const aclTensor*", 'call.optional_tensor({0}_, "{0}")'),
    "Laid": ("const aclTensor*", 'call.laid({0}_, "{0}")'),
    "Tensor[]": ("const aclTensorList*", 'call.tensors({0}_, "{0}")'),
    "Tensor[]?": ("const aclTensorList*", 'call.optional_tensors({0}_, "{0}")'),
    "Scalar": ("const aclScalar*", 'call.scalar({0}_, "{0}")'),
    "int[]": ("const aclIntArray*", 'call.integers({0}_, "{0}")'),
    "int[]?": ("const aclIntArray*", "call.optional_integers({0}_)"),
    "dtype": ("int32_t", "scalar_type({0}_)"),
    "str": ("const char*", 'std::string({0}_ ? {0}_ : "")'),
    "int": ("int64_t", "{0}_"),
    "int8": ("int8_t", "{0}_"),
    "bool": ("bool", "{0}_"),
    "double": ("double", "{0}_"),
}

_THUNK = """\
CANN_API int {name}GetWorkspaceSize({arguments}, uint64_t* workspace_bytes, aclOpExecutor** executor) {{
  return plan("{name}", workspace_bytes, executor, [&](aclOpExecutor& call) {{
{lifted}
    expect_absent({{{absent}}});
    call.compute = [=] {{ {compute}; }};
  }});
}}
CANN_API decltype({name}GetWorkspaceSize) {name}GetMaxWorkspaceSize __attribute__((alias("{name}GetWorkspaceSize")));
CANN_API int {name}(void*, uint64_t, aclOpExecutor* executor, void* stream) {{ return launch(executor, stream); }}
"""


def _thunk(operator: Operator) -> str:
    parameters = [parameter.split() for parameter in operator.parameters.split(", ")]
    return _THUNK.format(
        name=operator.name,
        arguments=", ".join(f"{_TYPES[kind][0]} {name}_" for kind, name in parameters),
        lifted="\n".join(
            f"    [[maybe_unused]] auto {name} = {_TYPES[kind][1].format(name)};" for kind, name in parameters
        ),
        absent=", ".join(f'{{"{name}", {name}}}' for name in operator.absent),
        compute=operator.compute,
    )


def operator_source() -> str:
    """The C++ of the whole table."""
    return '#include "executor.h"\n#include "operators.h"\n\n' + "\n".join(map(_thunk, OPERATORS))


def refusal_source(entry_points: Iterable[str], operators: Iterable[str]) -> str:
    """The C++ of entry points that say their name and fail; of an operator it is phase one that fails."""
    refused = {name: name for name in entry_points}
    for name in operators:
        refused |= {f"{name}GetWorkspaceSize": name, name: name}
    lines = (f'CANN_API int {entry}() {{ return fake::refuse("{name}"); }}\n' for entry, name in refused.items())
    return '#include "fake.h"\n\n' + "".join(lines)
