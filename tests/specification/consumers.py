"""What an unplaced consumer of the op at hand reads besides, and where it fares best.

It defines what `envs.placement.observation.consumer_features` computes, as a part of `observation`.
"""

from __future__ import annotations

from tests.specification.episode import ReferenceEpisode
from tests.specification.timeline import transfer_s

LONGEST_CHAIN = 8
"""Ops that are followed from a consumer on to the first that reads something placed."""


class Reader:
    """An unplaced op that reads a tensor, and what it reads besides.

    Attributes:
        along_bytes: bytes of the tensor, and of inputs made by unplaced ops of the unit at hand, which come
            from the same device.
        bytes_on: bytes of its placed inputs by the device of their producer, (n_devices,).
        moved_s: seconds of transfers that bring its placed inputs to each device, (n_devices,).
        met_s: when they would all be there, if transfers began when their producers finish, (n_devices,).
    """

    def __init__(self, episode: ReferenceEpisode, op: int, tensor: int) -> None:
        graph, timeline = episode.graph, episode.timeline
        self.episode, self.op = episode, op
        self.along_bytes = float(graph.tensor_bytes[tensor])
        self.bytes_on = [0.0 for _ in episode.devices]
        self.moved_s, self.met_s = [0.0 for _ in episode.devices], [0.0 for _ in episode.devices]
        for other in map(int, graph.inputs.row(op)):
            producer, size = int(graph.tensor_producer[other]), float(graph.tensor_bytes[other])
            source = episode.device_of[producer]
            if other == tensor:
                continue
            if source < 0:
                with_op = graph.unit_of[producer] == graph.unit_of[episode.op]
                self.along_bytes += size if with_op else 0.0
                continue
            self.bytes_on[source] += size
            for device in episode.devices:
                there_s = timeline.arrival_s.get((other, device))
                if there_s is None:
                    seconds = transfer_s(episode.cluster, size, source, device)
                    self.moved_s[device] += seconds
                    there_s = timeline.finish_s.get(producer, 0.0) + seconds
                self.met_s[device] = max(self.met_s[device], there_s)

    def finish_at_best(self, sent_s: float, source: int) -> float:
        """Earliest finish on any device, if the tensor leaves a device at a time and finds its link free.

        On that device itself, the reader runs after the op at hand.
        """
        finishes = []
        for device in self.episode.devices:
            free_s = sent_s if device == source else self.episode.timeline.device_free_s[device]
            arrival_s = sent_s + transfer_s(self.episode.cluster, self.along_bytes, source, device)
            start_s = max(arrival_s, free_s, self.met_s[device])
            finishes.append(start_s + self.episode.op_s[self.op][device])
        return min(finishes)

    def transfers_at_best(self, source: int) -> float:
        """Least seconds of transfers that bring together, on any device, the tensor and all placed inputs."""
        return min(
            self.moved_s[device] + transfer_s(self.episode.cluster, self.along_bytes, source, device)
            for device in self.episode.devices
        )


def reader_of_something_placed(episode: ReferenceEpisode, reader: Reader) -> Reader | None:
    """The reader, or else the first op down its chain, that has placed inputs; None if there is none.

    The chain goes from an op to the first consumer of its first output, `LONGEST_CHAIN` times at most, and
    ends before a placed op. Inputs of 0 bytes do not count.
    """
    graph = episode.graph
    for _ in range(LONGEST_CHAIN):
        outputs = graph.outputs.row(reader.op)
        if sum(reader.bytes_on) > 0.0 or not len(outputs):
            break
        consumers = graph.consumers.row(outputs[0])
        if not len(consumers) or episode.device_of[consumers[0]] >= 0:
            break
        reader = Reader(episode, int(consumers[0]), int(outputs[0]))
    return reader if sum(reader.bytes_on) > 0.0 else None
