"""Messages of exchanges and transfers: who sends which part to whom, and in what order."""

from __future__ import annotations

from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.layout import DimSplit, Layout, split
from mlirstitch.passes.partitioning.messages import Place, pieces_of
from mlirstitch.passes.partitioning.steps import Exchange, Fragment, Receive, Transfer

LINE = Mesh.of(x=2)
HALVES = Layout((split(("x",), 8),))


def test_a_move_sends_all_to_the_twin() -> None:
    mesh = Mesh.of(pp=2, x=2)
    first, second = mesh.at(pp=0), mesh.at(pp=1)
    step = Transfer(before=HALVES, after=HALVES, kind="move", source_mesh=first, wanted_mesh=second)
    pieces = pieces_of(step, (8,), (first, second), {}, ())
    assert [(p.source.device, p.receiver.device) for p in pieces] == [(0, 2), (1, 3)]
    assert all(p.taken == p.put == ((0, 4),) for p in pieces)


def test_a_halo_counts_from_the_box_of_each_end() -> None:
    # Parts with one position of the neighbour: device 0 wants 0 to 4, device 1 wants 3 to 7.
    wanted = Layout((DimSplit(("x",), 8, 1, -1, 3),))
    receives = (
        Receive((0,), (Fragment(((0, 4),), ((0,),)), Fragment(((4, 5),), ((1,),)))),
        Receive((1,), (Fragment(((3, 4),), ((0,),)), Fragment(((4, 8),), ((1,),)))),
    )
    step = Exchange(before=HALVES, after=wanted, axes=("x",), receives=receives)
    found = {
        (p.source.device, p.receiver.device): (p.taken, p.put) for p in pieces_of(step, (8,), (LINE, LINE), {}, ())
    }
    assert found == {
        (0, 0): (((0, 4),), ((0, 4),)),
        (1, 0): (((0, 1),), ((4, 5),)),
        (0, 1): (((3, 4),), ((0, 1),)),
        (1, 1): (((0, 4),), ((1, 5),)),
    }


def test_messages_stand_by_sender_then_receiver_whatever_the_order_of_receives() -> None:
    whole = Layout((DimSplit(),))
    receives = tuple(
        Receive((place,), (Fragment(((4, 8),), ((1,),)), Fragment(((0, 4),), ((0,),)))) for place in (1, 0)
    )
    step = Exchange(before=HALVES, after=whole, axes=("x",), receives=receives)
    pieces = pieces_of(step, (8,), (LINE, LINE), {}, ())
    assert [(p.source.device, p.receiver.device) for p in pieces] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_every_row_of_a_mesh_exchanges_for_itself() -> None:
    mesh = Mesh.of(y=2, x=2)
    receives = (Receive((0,), (Fragment(((4, 8),), ((1,),)),)),)
    step = Exchange(before=HALVES, after=Layout((DimSplit(),)), axes=("x",), receives=receives)
    pieces = pieces_of(step, (8,), (mesh, mesh), {}, ())
    assert [(p.source.device, p.receiver.device) for p in pieces] == [(1, 0), (3, 2)]


def test_a_place_in_time_names_the_axes_that_the_layout_is_cut_by() -> None:
    mesh = Mesh.of(pp=2)
    first, second = mesh.at(pp=0), mesh.at(pp=1)
    cut = Layout((split(("micro",), 8),))
    step = Transfer(before=cut, after=cut, kind="move", source_mesh=first, wanted_mesh=second)
    pieces = pieces_of(step, (8,), (first, second), {"micro": 4}, (("micro", 3),))
    assert [(p.source, p.receiver) for p in pieces] == [(Place(0, (("micro", 3),)), Place(1, (("micro", 3),)))]
    assert pieces[0].taken == ((0, 2),)
