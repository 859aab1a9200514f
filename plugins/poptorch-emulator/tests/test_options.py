"""``poptorch.Options``: PopTorch's names, arguments and errors, and which of them the emulator follows."""

from __future__ import annotations

import copy
import enum
import inspect
import pickle

import pytest
import torch

import refusals
from poptorch_emulator import Error, enums
from poptorch_emulator.blocks import PipelinedExecution, ShardedExecution
from poptorch_emulator.options import Options, TensorLocationSettings

#: Group -> setter -> its arguments, as PopTorch 3.4 has them.
SIGNATURES = {
    "": {
        "deviceIterations": "device_iterations",
        "replicationFactor": "replication_factor",
        "inputReplicaGrouping": "input_group_size, input_group_type",
        "broadcastBuffers": "broadcast_buffers=True",
        "outputMode": "output_mode, output_return_period=None",
        "defaultOutputMode": "",
        "randomSeed": "random_seed",
        "enableSyntheticData": "enabled",
        "connectionType": "connection_type",
        "useOfflineIpuTarget": "ipu_version=2",
        "setExecutionStrategy": "strategy",
        "autoRoundNumIPUs": "auto_round_num_ipus=True",
        "useIpuModel": "use_model",
        "useIpuId": "ipu_id",
        "syncPattern": "sync_pattern",
        "setAvailableMemoryProportion": "available_memory_proportion",
        "enableStableNorm": "enabled",
        "relaxOptimizerAttributesChecks": "relax=True",
        "updatableNamedBuffers": "buffers",
        "anchorTensor": "short_name, long_name, output_mode=None, output_return_period=1",
        "enableExecutableCaching": "path",
        "enableProfiling": "profile_dir=None",
        "logCycleCount": "log_cycle_count",
        "logDir": "log_dir",
        "modelName": "name",
        "showCompilationProgressBar": "show=True",
        "disableModuleNamescope": "",
        "sourceLocationExcludes": "excludes",
        "appendToLocationExcludes": "*excludes",
        "loadFromFile": "filepath",
        "clone": "",
    },
    "Training": {
        "gradientAccumulation": "gradient_accumulation",
        "accumulationAndReplicationReductionType": "reduction_type",
        "setMeanAccumulationAndReplicationReductionStrategy": "mean_reduction_strategy",
        "setAutomaticLossScaling": "enabled",
        "setConvolutionDithering": "enabled",
    },
    "Precision": {
        "halfFloatCasting": "half_float_casting",
        "runningStatisticsAlwaysFloat": "value",
        "enableFloatingPointExceptions": "enabled",
        "enableStochasticRounding": "enabled",
        "setPartialsType": "dtype",
    },
    "Jit": {"traceModel": "trace_model"},
    "Distributed": {
        "disable": "",
        "setEnvVarNames": "var_num_processes, var_process_id",
        "configureProcessId": "process_id, num_processes",
    },
    "TensorLocations": {
        "numIOTiles": "num_tiles",
        "setActivationLocation": "location",
        "setWeightLocation": "location",
        "setOptimizerLocation": "location",
        "setAccumulatorLocation": "location",
    },
    "_Popart": {"set": "key, value", "setPatterns": "patterns, level=2", "setEngineOptions": "engine_options"},
}
#: Setters that are taken and change nothing that a model computes.
HARMLESS = [
    ("", "broadcastBuffers", ()),
    ("", "enableSyntheticData", (False,)),
    ("", "setExecutionStrategy", (ShardedExecution(),)),
    ("", "autoRoundNumIPUs", ()),
    ("", "useIpuModel", (True,)),
    ("", "useIpuId", (3,)),
    ("", "syncPattern", (enums.SyncPattern.ReplicaAndLadder,)),
    ("", "setAvailableMemoryProportion", ({"IPU0": 0.5},)),
    ("", "enableStableNorm", (True,)),
    ("", "relaxOptimizerAttributesChecks", ()),
    ("", "updatableNamedBuffers", (["a"],)),
    ("", "enableExecutableCaching", ("cache",)),
    ("", "enableProfiling", ()),
    ("", "logCycleCount", (True,)),
    ("", "logDir", ("logs",)),
    ("", "modelName", ("net",)),
    ("", "showCompilationProgressBar", (False,)),
    ("", "disableModuleNamescope", ()),
    ("", "sourceLocationExcludes", (["a"],)),
    ("", "appendToLocationExcludes", ("a", "b")),
    ("Training", "setMeanAccumulationAndReplicationReductionStrategy", (enums.MeanReductionStrategy.Running,)),
    ("Training", "setAutomaticLossScaling", (False,)),
    ("Training", "setConvolutionDithering", (True,)),
    ("Precision", "halfFloatCasting", (enums.HalfFloatCastingBehavior.FloatDowncastToHalf,)),
    ("Precision", "runningStatisticsAlwaysFloat", (True,)),
    ("Precision", "enableFloatingPointExceptions", (False,)),
    ("Precision", "enableStochasticRounding", (False,)),
    ("Precision", "setPartialsType", (torch.half,)),
    ("Jit", "traceModel", (False,)),
    ("Distributed", "disable", ()),
    ("Distributed", "configureProcessId", (0, 1)),
    ("TensorLocations", "numIOTiles", (32,)),
    ("TensorLocations", "setActivationLocation", (TensorLocationSettings().useOnChipStorage(False),)),
    ("TensorLocations", "setWeightLocation", (TensorLocationSettings().useReplicatedTensorSharding(),)),
    ("TensorLocations", "setOptimizerLocation", (TensorLocationSettings().useIOTilesToLoad(),)),
    ("TensorLocations", "setAccumulatorLocation", (TensorLocationSettings().useIOTilesToStore(),)),
    ("_Popart", "setEngineOptions", ({"a": "b"},)),
]
FOLLOWED = [
    ("", "deviceIterations", (2,)),
    ("", "replicationFactor", (2,)),
    ("", "inputReplicaGrouping", (1, enums.CommGroupType.Consecutive)),
    ("", "outputMode", (enums.OutputMode.All,)),
    ("", "randomSeed", (7,)),
    ("", "connectionType", (enums.ConnectionType.OnDemand,)),
    ("", "useOfflineIpuTarget", ()),
    ("Training", "gradientAccumulation", (2,)),
    ("Training", "accumulationAndReplicationReductionType", (enums.ReductionType.Sum,)),
]
#: Setters that would change numbers in a way that is not modelled.
REFUSED = [
    ("", "enableSyntheticData", (True,)),
    ("", "inputReplicaGrouping", (2, enums.CommGroupType.Orthogonal)),
    ("", "loadFromFile", ("options.conf",)),
    ("Training", "setAutomaticLossScaling", (True,)),
    ("Precision", "enableFloatingPointExceptions", (True,)),
    ("Precision", "enableStochasticRounding", (True,)),
    ("Distributed", "configureProcessId", (0, 2)),
    ("_Popart", "set", ("autoRecomputation", 3)),
    ("_Popart", "setPatterns", ({"OpToIdentity": True},)),
]


def part(options, group):
    return getattr(options, group) if group else options


def arguments(function):
    """``a, b=1``, without annotations."""
    parameters = inspect.signature(function).parameters.values()
    return ", ".join(str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters)


class TestSignatures:
    @pytest.mark.parametrize("group", SIGNATURES)
    def test_are_poptorchs(self, group):
        found = part(Options(), group)
        assert {name: arguments(getattr(found, name)) for name in SIGNATURES[group]} == SIGNATURES[group]

    def test_of_tensor_locations(self):
        """The memory of a kind of tensor is taken, checked and kept, without effect."""
        settings = TensorLocationSettings()
        calls = [
            settings.minElementsForOffChip(1),
            settings.minElementsForReplicatedTensorSharding(2),
            settings.useOnChipStorage(True),
        ]
        assert all(result is settings for result in calls)
        assert settings.toDict() == {
            "minElementsForOffChip": 1,
            "minElementsForReplicatedTensorSharding": 2,
            "onChip": 1,
        }
        assert settings.useOnChipStorage(None).toDict().keys() == settings.toDict().keys() - {"onChip"}


class TestDefaults:
    def test_are_poptorchs(self):
        options = Options()
        assert options.device_iterations == options.replication_factor == options.input_group_size == 1
        assert options.output_mode == enums.OutputMode.Default
        assert options.output_return_period == 1
        assert options.broadcast_buffers is True
        assert options.connection_type == enums.ConnectionType.Always
        assert options.random_seed is None
        assert options.Training.gradient_accumulation == 1
        assert options.Training.accumulation_and_replication_reduction_type == enums.ReductionType.Mean
        assert options.Distributed.processId == 0
        assert options.Distributed.numProcesses == 1
        assert options.defaultOutputMode()

    def test_enumerations(self):
        """Names and values are PopTorch's; scripts store and compare them."""
        members = {name: kind for name, kind in vars(enums).items() if inspect.isclass(kind) and kind is not enum}
        values = {name: {member.name: member.value for member in kind} for name, kind in members.items()}
        assert values["OutputMode"] == {"Final": 0, "EveryN": 1, "All": 2, "Sum": 3, "Default": 4}
        assert values["ReductionType"] == {"Sum": 0, "Mean": 1, "NoReduction": 2}
        assert values["ConnectionType"] == {"Always": 0, "OnDemand": 1, "Never": 2}
        assert values["DataLoaderMode"] == {"Sync": 0, "Async": 1, "AsyncRebatched": 2}
        assert values["CommGroupType"] == {"All": 0, "Consecutive": 1, "Orthogonal": 2, "NoGrouping": 3}
        assert values["MeanReductionStrategy"] == {"Running": 0, "Post": 1, "PostAndLoss": 2}
        assert values["AutoStage"] == {"SameAsIpu": 0, "AutoIncrement": 1}
        assert values["SharingStrategy"] == {"SharedMemory": 0, "FileSystem": 1, "Fork": 2, "ForkServer": 3}
        assert values["VariableRetrievalMode"] == {"OnePerGroup": 0, "AllReplicas": 2}


class TestSetters:
    def test_return_their_group(self):
        for group, name, given in HARMLESS + FOLLOWED:
            found = part(Options(), group)
            assert getattr(found, name)(*given) is found

    def test_what_is_followed_can_be_read(self):
        options = Options().deviceIterations(2).replicationFactor(4).broadcastBuffers(False)
        options.inputReplicaGrouping(2, enums.CommGroupType.Consecutive)
        options.outputMode(enums.OutputMode.EveryN, 3)
        options.Training.gradientAccumulation(5)
        options.Training.accumulationAndReplicationReductionType(enums.ReductionType.Sum)
        assert (options.device_iterations, options.replication_factor, options.input_group_size) == (2, 4, 2)
        assert (options.output_mode, options.output_return_period) == (enums.OutputMode.EveryN, 3)
        assert options.broadcast_buffers is False
        assert options.Training.gradient_accumulation == options("Training").gradient_accumulation == 5
        assert options.Training.accumulation_and_replication_reduction_type == enums.ReductionType.Sum
        assert options.useOfflineIpuTarget().connection_type == enums.ConnectionType.Never

    def test_processes_of_the_environment_are_refused_too(self, monkeypatch):
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
        with pytest.raises(Error, match=r"distributed execution is not modelled .* has 2 processes"):
            Options()

    def test_seed(self):
        """PopTorch seeds torch on the host, too."""
        assert Options().randomSeed(5).random_seed == 5
        first = torch.rand(1)
        Options().randomSeed(5)
        assert torch.equal(torch.rand(1), first)


class TestFrozen:
    def test_nothing_can_be_set(self):
        options = Options()
        options.freeze()
        for group, name, given in HARMLESS + FOLLOWED + REFUSED:
            with pytest.raises(AttributeError, match="Can't modify frozen Options"):
                getattr(part(options, group), name)(*given)

    @pytest.mark.parametrize("copied", [lambda options: options.clone(), copy.deepcopy])
    def test_a_clone_is_not(self, copied):
        options = Options().deviceIterations(2)
        options.freeze()
        twin = copied(options)
        twin.deviceIterations(5).Training.gradientAccumulation(3)
        assert (options.device_iterations, options.Training.gradient_accumulation) == (2, 1)
        assert (twin.device_iterations, twin.Training.gradient_accumulation) == (5, 3)

    def test_a_pickle_is_the_same(self):
        options = Options().setExecutionStrategy(PipelinedExecution("a", "b"))
        twin = pickle.loads(pickle.dumps(options))
        assert repr(twin) == repr(options)
        assert twin.execution_strategy.stage("b")._stage_id == 1


test_refused = refusals.table(__file__, globals())
