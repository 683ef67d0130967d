from __future__ import annotations

import importlib.util

import pytest
import torch

from pytest_gpusync.simulated.kernels import torchvision_ops

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")


@pytest.fixture
def ops(cuda):
    import torchvision.ops

    return torchvision.ops


BOXES = [[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0], [0.0, 0.0, 5.0, 5.0]]
SCORES = [0.5, 0.9, 0.1, 0.8]


@pytest.mark.parametrize(("threshold", "kept"), [(0.5, [1, 3, 2]), (0.1, [1, 2]), (0.9, [1, 3, 0, 2])])
def test_nms_keeps_the_best_of_boxes_that_overlap(ops, threshold, kept):
    boxes, scores = torch.tensor(BOXES, device="cuda"), torch.tensor(SCORES, device="cuda")
    assert ops.nms(boxes, scores, threshold).tolist() == kept


def test_nms_of_nothing_is_nothing(ops):
    assert ops.nms(torch.empty(0, 4, device="cuda"), torch.empty(0, device="cuda"), 0.5).tolist() == []


def test_nms_waits_once(ops, kinds):
    boxes, scores = torch.tensor(BOXES, device="cuda"), torch.tensor(SCORES, device="cuda")
    with kinds() as counted:
        ops.nms(boxes, scores, 0.5)
    assert dict(counted) == {"stream": 1}


def test_batched_nms_keeps_boxes_of_other_classes(ops):
    boxes, scores = torch.tensor(BOXES, device="cuda"), torch.tensor(SCORES, device="cuda")
    classes = torch.arange(4, device="cuda")
    assert ops.batched_nms(boxes, scores, classes, 0.1).tolist() == [1, 3, 0, 2]


def test_roi_align_does_not_wait(ops, kinds):
    image = torch.ones(1, 2, 8, 8, device="cuda")
    rois = torch.tensor([[0.0, 1.0, 1.0, 6.0, 6.0]], device="cuda")
    with kinds() as counted:
        aligned = ops.roi_align(image, rois, 3)
    assert (aligned.shape, dict(counted)) == ((1, 2, 3, 3), {})


def test_roi_align_averages_what_lies_in_a_bin(ops):
    image = torch.arange(64.0).reshape(1, 1, 8, 8).cuda().requires_grad_()
    rois = torch.tensor([[0.0, 0.0, 0.0, 8.0, 8.0]], device="cuda")
    aligned = ops.roi_align(image, rois, 2, aligned=True)
    assert aligned.flatten().tolist() == [13.5, 17.5, 45.5, 49.5]
    aligned.sum().backward()
    assert torch.allclose(image.grad, torch.full_like(image, 1 / 16))


def test_an_operator_that_is_not_served_works_or_is_refused_by_name(ops):
    image, rois = torch.ones(1, 2, 8, 8, device="cuda"), torch.tensor([[0.0, 0.0, 0.0, 8.0, 8.0]], device="cuda")
    if not torchvision_ops._libraries:
        assert ops.roi_pool(image, rois, 2).tolist() == [[[[1, 1], [1, 1]]] * 2]
        return
    with pytest.raises(NotImplementedError, match=r"torchvision::roi_pool is not simulated.*install the torchvision"):
        ops.roi_pool(image, rois, 2)


def test_operators_that_exist_are_left_alone(ops, monkeypatch):
    monkeypatch.setattr(torchvision_ops, "_libraries", [])
    assert not torchvision_ops.stand_in("/site-packages/torchvision/_C.so")


def test_another_library_that_does_not_load_raises_as_ever(cuda, tmp_path):
    broken = tmp_path / "_C.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(OSError, match="Could not load this library"):
        torch.ops.load_library(broken)


class Align(torch.autograd.Function):
    """The operator as it is where torchvision does not bring its gradients."""

    forward = staticmethod(torchvision_ops.roi_align)
    setup_context = staticmethod(torchvision_ops._keep)
    backward = staticmethod(torchvision_ops._gradient)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [2, -1])
def test_roi_align_has_its_gradients_where_torchvision_does_not_bring_them(ops, ratio, aligned):
    image = torch.rand(2, 2, 6, 5, dtype=torch.float64, requires_grad=True)
    rois = torch.tensor([[0, 0, 0, 4, 3], [1, 1, 2, 9, 9], [1, -3, -2, 0, 1], [0, 2, 2, 2, 2]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda image: Align.apply(image, rois, 0.8, 3, 2, ratio, aligned), (image,))
