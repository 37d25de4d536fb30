"""Encoders of what the driver sees."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.envs.black_ice import BlackIce
from samplr.envs.black_ice.networks import CarEncoder, Convolution
from samplr.student.networks import build_network

from .conftest import KEY


def shape_of_network(env, encoder):
    return jax.eval_shape(lambda key: build_network(env, encoder, (), 0, head=100, key=key), KEY)


class TestNetworks:
    @pytest.mark.parametrize(("encoder", "features"), [("paper", 1024), ("lineage", 256)])
    @pytest.mark.parametrize("frame_stack", [1, 4])
    def test_features(self, encoder, features, frame_stack):
        view = jax.ShapeDtypeStruct((96, 96, 3 * frame_stack), jnp.uint8)
        evidence = jax.ShapeDtypeStruct((2,), jnp.float32)
        make = BlackIce(frame_stack=frame_stack).encoders()[encoder]

        def encode(key, observation):
            return make(hidden=(), key=key)(observation)

        assert jax.eval_shape(encode, KEY, view).shape == (features,)
        assert jax.eval_shape(encode, KEY, {"view": view, "evidence": evidence}).shape == (features + 2,)

    @pytest.mark.parametrize(
        ("encoder", "frame_stack", "parameters"),
        [("paper", 1, 585_699), ("lineage", 1, 445_827), ("lineage", 4, 446_979)],
    )
    def test_numbers_of_parameters(self, encoder, frame_stack, parameters):
        network = shape_of_network(BlackIce(frame_stack=frame_stack), encoder)
        assert sum(leaf.size for leaf in jax.tree.leaves(network)) == parameters

    def test_the_defaults_are_the_papers_network(self):
        assert BlackIce.defaults["student.encoder"] == "paper"
        assert BlackIce.defaults["student.hidden"] == ()
        assert BlackIce.defaults["student.head"] == 100

    def test_what_an_encoder_is_given(self):
        # Without convolutions it gives what they would be given, and the evidence on a logarithmic scale.
        encode = CarEncoder(3, (), key=KEY)
        view = jnp.array([[[0, 128, 255]]], jnp.uint8)
        assert encode(view) == pytest.approx([-1, 0, 127 / 128])
        seen = {"view": view, "evidence": jnp.array([0.0, 9.0])}
        assert encode(seen) == pytest.approx([-1, 0, 127 / 128, 0, np.log(10)])

    @pytest.mark.parametrize("backend", ["cpu", "gpu"])
    def test_a_convolution_is_a_convolution(self, backend, monkeypatch):
        # With pictures whose sides the stride does and does not divide. A GPU does some by blocks, a CPU none.
        cases = [(2, 2, (9, 11, 2)), (3, 1, (5, 6, 2)), (4, 2, (12, 9, 3)), (4, 2, (12, 9, 1)), (3, 2, (7, 8, 2))]
        by_blocks = []

        def noted(layer, x, weight, blocks=Convolution._by_blocks):
            by_blocks.append((layer.side, layer.stride, x.shape))
            return blocks(layer, x, weight)

        monkeypatch.setattr(Convolution, "_by_blocks", noted)

        def both(side, stride, shape, key):
            layer = eqx.tree_at(
                lambda c: c.bias, Convolution(shape[2], 5, side, stride, key=key), jnp.arange(5, dtype=jnp.float32)
            )
            x = jax.random.normal(key, shape)
            known = jax.lax.conv_general_dilated(
                x[None],
                layer.weight.reshape(side, side, shape[2], 5),
                (stride, stride),
                "VALID",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            return layer(x), known[0] + layer.bias

        program = jit(lambda key: [both(*case, key) for case in cases], runs_once=True)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(jax, "default_backend", lambda: backend)
            program = program.trace(KEY)
        for ours, known in program.lower().compile()(KEY):
            np.testing.assert_allclose(ours, known, rtol=1e-4, atol=1e-4)
        assert by_blocks == ([] if backend == "cpu" else [(2, 2, (9, 11, 2)), (4, 2, (12, 9, 3))])

    def test_weights_begin_as_xaviers_for_relu(self):
        layer = Convolution(8, 16, 3, 1, key=jax.random.key(3))
        # √2 · √(6 / (fan in + fan out)), and each fan counts the nine pixels of the patch.
        bound = 2**0.5 * (6 / (9 * 8 + 9 * 16)) ** 0.5
        assert 0.98 * bound < float(jnp.abs(layer.weight).max()) <= bound
        assert (np.asarray(layer.bias) == np.float32(0.1)).all()
