"""The native rule against the float64 loop: shapes, dtypes, layouts, masks, determinism."""

import pytest
import torch
from cases import DTYPES, HEAD_MAPS, guarded, guards_intact, offset_view, strided_view
from native import HEAD_DIMS, TOKENS, Rule, assert_rule, assert_same_bits, make_rule

from torch_mps_fusion import reference
from torch_mps_fusion.tolerances import error, tolerance


@pytest.mark.parametrize("state_order", ("dk", "dv", None))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
def test_B7_every_length_dtype_and_state_order(tokens, dtype, state_order):
    rule = make_rule(tokens, dtype, batch=2, state_order=state_order)
    assert_rule(rule.run(), rule)
    if state_order is not None:
        state = rule.state.clone()
        assert_rule((rule.run_in_place(state), state), rule)


@pytest.mark.parametrize("tokens", (1, 6))
@pytest.mark.parametrize("dv", HEAD_DIMS)
@pytest.mark.parametrize("dk", HEAD_DIMS)
def test_B2_all_head_dims(dk, dv, tokens):
    for order in ("dk", "dv"):
        rule = make_rule(tokens, torch.bfloat16, dims=(dk, dv), state_order=order)
        assert_rule(rule.run(), rule)


@pytest.mark.parametrize("tokens", (1, 5))
@pytest.mark.parametrize("head_map", HEAD_MAPS)
@pytest.mark.parametrize("ratio", (1, 2, 3, 4, 8))
def test_C1_C8_head_maps_and_ratios(ratio, head_map, tokens):
    rule = make_rule(tokens, heads=(3, 3 * ratio), head_map=head_map, batch=2)
    assert_rule(rule.run(), rule)


@pytest.mark.parametrize("heads", ((16, 16), (16, 32), (16, 48)), ids=("0.8b", "9b", "27b"))
@pytest.mark.parametrize("tokens", (1, 8, 33))
def test_real_shapes(tokens, heads):
    rule = make_rule(tokens, torch.bfloat16, heads=heads, dims=(128, 128))
    assert_rule(rule.run(), rule)


@pytest.mark.parametrize("tokens", (127, 128, 129, 300))
def test_around_the_packed_segment(tokens):
    for order in ("dk", "dv"):
        rule = make_rule(tokens, dims=(64, 128), state_order=order)
        assert_rule(rule.run(), rule)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("beta", (torch.float32, None))
def test_beta_in_float32_or_the_dtype_of_q(beta, dtype):
    rule = make_rule(9, dtype)
    rule.beta = rule.beta.to(beta or dtype)
    assert_rule(rule.run(), rule)


@pytest.mark.parametrize("tokens", (1, 9))
@pytest.mark.parametrize("name", ("q", "k", "v", "g", "beta", "mask"))
def test_A1_arguments_as_views(name, tokens):
    rule = make_rule(tokens, batch=2, mask=torch.arange(2 * tokens).view(2, tokens) % 3 != 1)
    expected = rule.run()
    value = getattr(rule, name)
    for view in (offset_view, strided_view):
        setattr(rule, name, view(value))
        assert_same_bits(rule.run(), expected)


@pytest.mark.parametrize("tokens", (1, 9))
@pytest.mark.parametrize("order", ("dk", "dv"))
def test_A2_state_sliced_out_of_a_pool_in_every_dim(order, tokens):
    rule = make_rule(tokens, batch=2, dims=(32, 64), state_order=order)
    expected = rule.run()
    state = rule.state.mT if order == "dk" else rule.state
    rows, columns = state.shape[-2:]
    pool = torch.full((5, 9, rows + 3, columns + 5), float("nan"))
    view = pool[1::2, 1::2, 2 : 2 + rows, 3 : 3 + columns]
    view.copy_(state)
    rule.state = view.mT if order == "dk" else view
    assert_same_bits(rule.run(), expected)
    output = rule.run_in_place(rule.state)
    assert_same_bits((output, rule.state), expected)
    view.fill_(float("nan"))
    assert pool.isnan().all()


def test_expanded_arguments():
    rule = make_rule(9, batch=1)
    one = rule.run()
    for name in ("q", "k", "v", "g", "beta", "state"):
        value = getattr(rule, name)
        setattr(rule, name, value.expand(3, *value.shape[1:]))
    output, state = rule.run()
    for b in range(3):
        assert_same_bits((output[b : b + 1], state[b : b + 1]), one)


@pytest.mark.parametrize("order", ("dk", "dv"))
@pytest.mark.parametrize("tokens", (1, 3, 65, 130))
def test_A3_in_place_keeps_its_neighbours(tokens, order):
    rule = make_rule(tokens, batch=2, state_order=order)
    pool = torch.stack([rule.state] * 3, 2)  # a pool of slots: outer strides are not those of one
    pool = pool if order == "dv" else pool.mT.contiguous().mT
    view, buffer = guarded(pool)
    slot = view[:, :, 1]
    assert_rule((rule.run_in_place(slot), slot), rule)
    assert guards_intact(view, buffer)
    assert torch.equal(view[:, :, 0], rule.state) and torch.equal(view[:, :, 2], rule.state)


MASKS = {"left": "000111111", "right": "111111000", "inside": "110110011", "all": "000000000",
         "one": "000010000", "none": "111111111"}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", ("dk", "dv", None))
def test_D2_masked_tokens_are_not_there(order, dtype):
    mask = torch.tensor([[bit == "1" for bit in row] for row in MASKS.values()])
    rule = make_rule(9, dtype, batch=len(mask), state_order=order, mask=mask)
    expected = make_rule(9, dtype, batch=len(mask), state_order=order, mask=mask)
    for tensor in rule.tokens:
        tensor[~mask] = float("nan")
    output, state = rule.run()
    assert_rule((output, state), expected)
    assert (output[~mask] == 0).all()
    for row, real in enumerate(mask):
        compact = Rule(
            *(t[row : row + 1, real] for t in expected.tokens),
            None if order is None else expected.state[row : row + 1],
        )
        assert_same_bits((output[row : row + 1, real], state[row : row + 1]), compact.run())


@pytest.mark.parametrize("order", ("dk", "dv"))
def test_a_masked_call_leaves_the_state(order):
    rule = make_rule(5, batch=2, state_order=order, mask=torch.zeros(2, 5, dtype=torch.bool))
    state = rule.state.clone()
    output = rule.run_in_place(state)
    assert (output == 0).all()
    assert_same_bits((state, rule.run()[1]), (rule.state, rule.state))


@pytest.mark.parametrize("tokens", (1, 9, 140))
def test_G5_fifty_repeats_are_bit_identical(tokens):
    rule = make_rule(tokens, torch.bfloat16, batch=2, dims=(64, 64))
    first = rule.run()
    for _ in range(50):
        assert_same_bits(rule.run(), first)


@pytest.mark.parametrize("tokens", (1, 9, 140))
def test_thread_count_does_not_matter(tokens):
    rule = make_rule(tokens, torch.bfloat16, batch=2, dims=(64, 128))
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            results.append(rule.run())
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert_same_bits(result, results[0])


@pytest.mark.parametrize("tokens", (1, 9, 140))
def test_G13_batch_neighbours_do_not_matter(tokens):
    rule = make_rule(tokens, torch.bfloat16, batch=5)
    output, state = rule.run()
    for b in range(5):
        alone = Rule(*(t[b : b + 1] for t in (*rule.tokens, rule.state)))
        assert_same_bits((output[b : b + 1], state[b : b + 1]), alone.run())


@pytest.mark.parametrize("order", ("dk", "dv"))
def test_E1_split_at_every_point(order):
    rule = make_rule(19, state_order=order)
    for cut in range(1, 19):
        state = rule.state.clone()
        parts = [
            Rule(*(t[:, part] for t in rule.tokens), None).run_in_place(state)
            for part in (slice(cut), slice(cut, None))
        ]
        assert_rule((torch.cat(parts, 1), state), rule)


@pytest.mark.parametrize("g", (-30.0, -1e4, float("-inf")))
def test_G1_heavy_decay(g):
    rule = make_rule(130, dims=(32, 64))
    rule.g[:, 20:84] = g
    assert_rule(rule.run(), rule)


def test_G12_slow_decay_is_kept():
    rule = make_rule(4096, heads=(1, 1))
    rule.g[:], rule.beta[:] = -0.0005, 0.0
    _, state = rule.run()
    kept = rule.state.double() * torch.tensor(-0.0005 * 4096, dtype=torch.double).exp()
    assert error(state, kept) <= tolerance("recurrent_state", torch.float32).rms


@pytest.mark.parametrize("tokens", (1, 9))
def test_zero_queries_keys_and_no_norm(tokens):
    rule = make_rule(tokens)
    rule.q[:], rule.k[:] = 0, 0
    output, state = rule.run()
    assert (output == 0).all() and torch.isfinite(state).all()
    rule = make_rule(tokens)
    rule.k *= 0.1
    keywords = {"head_map": "block", "scale": 0.3, "qk_l2norm": False}
    actual = torch.ops.mps_fusion.gated_delta_rule(*rule.tokens, rule.state, **keywords)
    expected = reference.gated_delta_rule(*rule.tokens, rule.state, **keywords)
    for name, a, e in zip(("output", "recurrent_state"), actual, expected, strict=True):
        assert error(a, e) <= tolerance(name, torch.float32).rms


def test_B3_forty_thousand_tokens():
    rule = make_rule(40_000, torch.bfloat16, heads=(1, 1))
    assert_rule(rule.run(), rule)


@pytest.mark.parametrize("batch,tokens", ((0, 5), (2, 0)))
def test_empty_calls(batch, tokens):
    rule = make_rule(tokens, batch=batch)
    output, state = rule.run()
    assert output.shape == rule.v.shape
    assert torch.equal(state, rule.state)
