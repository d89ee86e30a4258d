"""The bench of kernels finds offsets that overflow, and the instructions of a loop."""

import pytest

PRODUCT = """
    %of_block = tt.get_program_id y : i32
    {wide}%at = arith.muli %{block}, %{count} : {bits} loc("at"(#loc))
    %to = tt.addptr %array, %at : !tt.ptr<f32>, {bits}
"""


@pytest.mark.parametrize(
    ("block", "count", "bits", "fits"),
    [
        ("of_block", "num_pairs", "i32", False),
        ("of_block", "heads", "i32", True),
        ("wide", "num_pairs", "i64", True),
        ("num_pairs", "num_pairs", "i32", False),
    ],
)
def test_offsets_that_overflow(scripts, block, count, bits, fits):
    pytest.importorskip("triton", reason="Triton is only published for Linux")
    wide = "%wide = arith.extsi %of_block : i32 to i64\n    %num_pairs_1 = arith.extsi %num_pairs : i32 to i64\n    "
    text = PRODUCT.format(wide=wide * (bits == "i64"), block=block, count=count, bits=bits)
    found = scripts("_machine_code").overflows(text)
    assert found == ([] if fits else [f"%at = arith.muli %{block}, %{count} : i32"])


def test_instructions_of_a_loop_without_what_is_skipped(scripts):
    pytest.importorskip("triton", reason="Triton is only published for Linux")
    code = scripts("_machine_code").Code(["X"] * 20, [(19, 2), (6, 14), (12, 8)])
    assert code.loops == [(2, 20), (8, 13)]
    assert code.hot() == 18 - 7
    assert code._replace(branches=[(19, 2), (12, 8)]).hot() == 18 - 5
