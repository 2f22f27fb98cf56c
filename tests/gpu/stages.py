"""The stages of the check, in their order. Each is a function of the check (see there), listed with its limit in
seconds, the seconds that are reserved for it while others run, and its description."""
import glob
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys

import goals
import kernel_times
import steps

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = ("tutti-info", "tuttirun", "tutti-train", "all_reduce_perf", "sendrecv_perf", "kernels_perf",
            "redistribute_perf", "model_probe", "tutti_cuda")
TESTS = ("device", "module_kernels", "nccl", "nccl_library", "same_device", "stream", "stream_async", "stream_failure",
         "stream_random", "stream_graph", "stream_shared", "stream_watch", "ops_cuda", "ops_rows_cuda", "tensor_cuda",
         "tensor_cuda_failure", "tensor_dlpack_cuda", "tensor_stream", "train_auto_cuda", "train_cuda")


def first_line(text):
    return (text.strip().splitlines() or ["nothing"])[0]


# ------------------------------------------------------------------------------------------------------- facts

PYTHON_FACTS = """
import sys
print("Python %s" % sys.version.split()[0], end="")
try:
    import torch
    print(", PyTorch %s for CUDA %s" % (torch.__version__, torch.version.cuda), end="")
    print(", NCCL %s" % ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else ", no GPU in it", end="")
except Exception as error:
    print(", no PyTorch: %s" % error, end="")
"""


def facts(check):
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = re.search(r"model name\s*: (.*)", file.read())
    check.fact("processor: %s, %d cores for us" % (model.group(1) if model else os.uname().machine,
                                                   len(os.sched_getaffinity(0))))
    check.fact("kernel: %s %s" % (os.uname().sysname, os.uname().release))
    for name, words in (("nvidia-smi", ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,mig.mode.current,compute_mode",
                                        "--format=csv,noheader"]),
                        ("CMake", ["cmake", "--version"]), ("ninja", ["ninja", "--version"]), ("gcc", ["gcc", "--version"]),
                        ("Python", [sys.executable, "-c", PYTHON_FACTS])):
        check.fact("%s: %s" % (name, first_line(check.said(words))))
    check.fact("nvcc: %s" % steps.last_line(check.said(["nvcc", "--version"])))
    if shutil.which("nvidia-smi"):
        check.step("nvidia-smi", ["nvidia-smi"], 10, show=40, summary=first_line)
    else:
        check.note("nvidia-smi", "skipped", words="it is not here")


# ------------------------------------------------------------------------------------------------------- build

def has_header(name):
    try:
        done = subprocess.run(["cc", "-E", "-I/usr/include/openblas", "-"], input="#include <%s>\n" % name, text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def plain_libraries(check):
    """Our own small replacements of CBLAS and zlib, for the host's part of the trainer: slow, but available."""
    found = []
    plain = os.path.join(HERE, "plain")
    for name, header, variables in (("cblas", "cblas.h", ("TUTTI_CBLAS_INCLUDE", "TUTTI_CBLAS_LIBRARY")),
                                    ("zlib", "zlib.h", ("ZLIB_INCLUDE_DIR", "ZLIB_LIBRARY"))):
        if has_header(header) and not check.options.plain:
            continue
        folder = os.path.join(check.shared, name)
        os.makedirs(folder, exist_ok=True)
        shutil.copy(os.path.join(plain, header), folder)
        library, item = os.path.join(folder, "lib%s.a" % name), os.path.join(folder, name + ".o")
        result = check.step("plain " + name, ["sh", "-c", 'cc -O3 -fPIC -I "$1" -c "$2" -o "$3" && ar rcs "$4" "$3"', "sh", folder,
                                              os.path.join(plain, name + ".c"), item, library], 20)
        if result is not None and result.state == "passed":
            found += ["-D%s=%s" % (variables[0], folder), "-D%s=%s" % (variables[1], library)]
    return found


def packages_folder():
    """The folder nvidia of Python's packages, with NCCL and cuBLAS, or None."""
    for folder in sys.path:
        if glob.glob(os.path.join(folder or ".", "nvidia", "*", "include")):
            return os.path.abspath(folder)
    return None


def packaged_library(pattern):
    """The path of one of their libraries, or None."""
    found = glob.glob(os.path.join(packages_folder() or "", "nvidia", "*", "lib", pattern))
    return max(found, default=None)


def configure(check):
    """Configures and starts to compile, in parallel with the stages that do not need the programs."""
    arguments = ["cmake", "-S", check.source, "-B", check.build, "-DCMAKE_BUILD_TYPE=Release", "-DTUTTI_TESTS=ON"]
    if shutil.which("ninja"):
        arguments += ["-G", "Ninja"]
    if packages_folder():
        arguments.append("-DTUTTI_CUDA_PACKAGES=" + packages_folder())
    result = check.step("configure", arguments + plain_libraries(check) + shlex.split(check.options.cmake), 60, summary=lambda text: "; ".join(
        line[3:] for line in text.splitlines() if re.match(r"-- (cuda|nccl|cublas|Trainer|tests)[: ]", line)))
    if result is None or result.state != "passed":
        return
    wanted = PROGRAMS + tuple("test_" + name for name in TESTS)
    if check.options.standin:
        wanted += ("standin_cuda", "standin_nccl", "standin_training")
    known = known_targets(check)
    targets = [name for name in wanted if name in known]
    missing = [name for name in wanted if name not in known]
    if missing:
        check.report.add_answers(check.stage, [("not built", ", ".join(missing))])
    go_on = ["--", "-k", "0"] if os.path.exists(os.path.join(check.build, "build.ninja")) else ["--", "-k"]
    jobs = max(check.options.jobs - 3, 1)  # the probes measure times, too
    log = os.path.join(check.folder, "compile.log")
    open(log, "wb").close()
    check.compiling = steps.Command(["cmake", "--build", check.build, "-j", str(jobs), "--target"] + targets + go_on, log,
                                    check.environment, check.build)


def build(check):
    if check.compiling is None:
        configure(check)
    command, check.compiling = check.compiling, None
    if command is not None:
        check.finish("compile (began with the stage before)", command, check.left_s(170))
    start_torch_build(check)
    if check.program("tutti-info"):
        check.step("tutti-info", [check.program("tutti-info")], 30, show=60, summary=lambda text: "; ".join(
            " ".join(line.split()) for line in text.splitlines() if re.match(r"  +(CUDA|GPU \d|NCCL) ", line)))
    for pattern in ("another_process_maps*", "a_stream_waits*", "a_kernel_reads*"):
        test(check, "device/" + pattern, "device", 30, "device/" + pattern)


def known_targets(check):
    text = check.said(["cmake", "--build", check.build, "--target", "help"])
    return set(re.findall(r"^(?:\.\.\. )?([\w.-]+)(?::| |$)", text, re.MULTILINE))


# ---------------------------------------------------------------------------------------------- Criterion's tests

def told(output):
    """The sum, and what failed or was skipped, in one line."""
    sums = re.findall(r"Tested: .*", output)
    words = [sums[-1].replace("Tested: ", "of ").replace(" | ", ", ")] if sums else []
    words += re.findall(r"(?:\[FAIL\]|not so:|ended by signal|not done after) ?(.*)", output)[:3]
    skips = sorted(set(re.findall(r"skipped: (.*)", output)))
    return "; ".join(words + ["skipped: " + skip for skip in skips[:3]]) or steps.last_line(output)


def test(check, name, program, limit_s=60, pattern=None, **environment):
    path = check.program("test_" + program)
    if path is None:
        check.note(name, "left out", words="test_%s was not built" % program)
        return
    if check.options.standin and program in ("train_auto_cuda", "train_cuda", "module_kernels", "ops_cuda", "ops_rows_cuda"):
        environment["TUTTI_CUDA_MODULE"] = check.standin("training")
    if check.options.standin and program == "stream_failure":  # its faults are not for NCCL's engine, which nccl_failure tests
        environment["TUTTI_NCCL_LIBRARY"] = None
    words = [path, "--jobs", "1"] + (["--filter", pattern] if pattern else [])
    check.step(name, words, limit_s, environment, summary=told)


# ---------------------------------------------------------------------------------------------------- the stages

def ask(check, name, limit_s, summary, program, *arguments):
    """A program that prints "question: answer" lines, each of which becomes a row of the report."""
    result = check.step(name, [sys.executable, os.path.join(HERE, program), *arguments], limit_s, summary=summary)
    if result is not None:
        check.report.add_answers(check.stage, re.findall(r"^ *([^:\n]+): (.+)$", result.output, re.MULTILINE))


def count_answers(text):
    return steps.last_line(text) if "skipped" in text else "%d answers" % len(re.findall(r"^[^ :].*: ", text, re.MULTILINE))


def probes(check):
    def missing(text):
        return "; ".join(re.findall(r"^(.*: NO: .*)$", text, re.MULTILINE)) or "all there"

    ask(check, "the kernel", 20, missing, "probe_kernel.py")
    if check.keeper is not None:
        check.report.add_answers(check.stage, [("the first context", steps.last_line(check.keeper.output()) or "still being made")])
    ask(check, "the GPU, by its driver", 45, lambda text: steps.last_line(text) if "skipped" in text else missing(text), "probe_gpu.py")
    ask(check, "streams, by the driver", 50, count_answers, "probe_streams.py")
    ask(check, "queues of streams", 20, count_answers, "probe_queues.py")
    ask(check, "copies beside a full GPU", 15, count_answers, "probe_copies.py")
    ask(check, "several processes", 40, count_answers, "probe_processes.py")
    ask(check, "what calls cost", 20, count_answers, "probe_costs.py")
    ask(check, "calls during captures", 15, count_answers, "probe_captures.py")
    ask(check, "under MPS", 45, count_answers, "probe_mps.py")


def kernels(check):
    test(check, "the GPU's table, reductions and copies of boxes against the host's", "device", 60)
    test(check, "TF32 is off, and on when it is asked for", "module_kernels", 20, "precision/*")
    test(check, "the trainer's kernels against the host's", "module_kernels", 60)


def nccl(check):
    test(check, "finding the library", "nccl_library", 30)
    test(check, "one rank, all kinds and types", "nccl", 60)
    gpus = len(re.findall("GPU ", check.said(["nvidia-smi", "-L"])))
    if gpus > 1:
        test(check, "a GPU for each rank", "nccl", 60, TUTTI_TEST_GPUS=str(gpus))


def one_gpu(check):
    test(check, "2 and 4 ranks, all kinds, types, sizes", "same_device", 100)
    test(check, "streams, works, groups, messages", "stream_async", 60)
    test(check, "with the default settings", "stream", 60)
    test(check, "by way of the host", "stream", 60, TUTTI_ALGORITHM="staged")
    if check.program("all_reduce_perf") is not None and not check.options.standin:
        ask(check, "how many contexts a rank makes", 30, count_answers, "probe_contexts.py", os.path.join(check.build, "bin"))


def queues(check):
    """With fewer hardware queues than streams, a stream that waits stops those in its queue."""
    for words, setting in (("CUDA's default", None), ("1", "1")):
        test(check, "streams, works, groups, messages; queues: " + words, "stream_async", 25, TUTTI_TEST_WORLDS="2/0",
             CUDA_DEVICE_MAX_CONNECTIONS=setting)
        if os.path.isdir(os.path.join(torch_site(check), "torch_tutti")):
            check.step("PyTorch: collectives, DDP; queues: " + words, [
                sys.executable, os.path.join(HERE, "torch_cuda.py"), "--ranks", "2", "--only", "collectives", "streams", "ddp"], 30,
                       {"PYTHONPATH": torch_site(check), "CUDA_DEVICE_MAX_CONNECTIONS": setting or "8"})


def graphs(check):
    test(check, "captured, replayed, refused", "stream_graph", 40)


def tensors(check):
    test(check, "redistribution gives what it gives in host memory", "tensor_cuda", 60)
    test(check, "streams, graphs", "tensor_stream", 40)
    test(check, "DLPack", "tensor_dlpack_cuda", 20)
    test(check, "ranks that die or stop", "tensor_cuda_failure", 60)
    model_cases(check)
    if check.program("redistribute_perf") is None:
        check.note("redistribute_perf", "left out", words="it was not built")
        return
    sizes = ["-e", "64K"] if check.options.standin else ["-e", "64M"]
    for name, options in (("4 ranks", ["-t", "4", "--bare"]), ("4 ranks that are threads", ["-t", "4", "--ranks", "threads"]),
                          ("many tensors", ["-t", "4", "--many", "200", "-e", "64K"])):
        if "threads" in options and os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
            check.note("redistribute_perf, " + name, "skipped", words="clients of MPS have too few hardware queues for it")
            continue
        words = [check.program("redistribute_perf"), "--device", "cuda", "-b", "64K", "-f", "32", "-n", "20", "-w", "3"]
        check.step("redistribute_perf, " + name, words + sizes + options, 40, summary=wrong_elements, show=30)


def operators(check):
    test(check, "a network, in order, in graphs, without waiting", "ops_cuda", 50)
    test(check, "each row of the table against one rank in host memory", "ops_rows_cuda", 60)


def wrong_elements(output):
    return "; ".join(re.findall(r"# (Wrong elements: .*)", output)) or steps.last_line(output)


def model_cases(check):
    if importlib.util.find_spec("numpy") is None:
        check.note("random cases of the model", "skipped", words="there is no numpy")
        return
    path, probe, run = new_file(check, "cases.txt"), check.program("model_probe"), check.program("tuttirun")
    if probe is None or run is None:
        check.note("random cases of the model", "left out", words="model_probe or tuttirun was not built")
        return
    model = os.path.join(check.source, "tests", "tensor", "model.py")
    script = '"$0" "$1" cases --seed 21 --count 1000 --world 1..4 >"$2"'
    check.step("random cases of the model", ["sh", "-c", script, sys.executable, model, path], 30)
    one_gpu = {"STANDIN_GPUS": "1", "TUTTI_DEVICE": "0"}  # sums are then in the model's order
    for memory in ("cuda", "from_cuda", "to_cuda"):
        check.step("the model's cases, " + memory, [run, "--standalone", "--nproc_per_node", "4", probe, path, memory], 60, one_gpu)


def failures(check):
    test(check, "killed, stopped, different, aborted ranks", "stream_failure", 60)
    test(check, "the same by way of the host", "stream_failure", 60, TUTTI_ALGORITHM="staged")
    test(check, "a program that waits inside CUDA", "stream_watch", 60)


def stress(check):
    calls = "150" if check.options.standin else "1500"
    test(check, "random calls, streams, orders", "stream_random", 100, TUTTI_TEST_CALLS=calls)


def trainer(check):
    test(check, "losses are the host's, with 1 to 4 ranks", "train_cuda", 80)
    test(check, "strategies are searched for and predicted", "train_auto_cuda", 60)
    train, run = check.program("tutti-train"), check.program("tuttirun")
    if train is None or run is None:
        check.note("tutti-train", "left out", words="it was not built")
        return
    options = ["--model", "lenet", "--steps", "200", "--log-every", "50"] + (
        ["--data", check.options.data] if check.options.data else [])
    if check.options.standin:
        options[3] = "3"
    device = ["--device", "host" if check.options.standin else "cuda"]
    check.step("1 rank", [train] + options + device, 40)
    check.step("2 ranks", [run, "--standalone", "--nproc_per_node", "2", train] + options + device, 40)


def all_reduce_times(check, name, *options, before=()):
    """Small and large ones separately: there are fewer large ones, since they take long if something is wrong.
    before: words of a command that runs the program."""
    device = [] if check.options.standin else ["--device", "cuda"]
    for least, most, rounds in (("8", "32K", "200"), ("1M", "64M", "30")):
        path = new_file(check, "all_reduce-%s-%s.csv" % (name.replace(" ", "-"), least))
        check.step("all_reduce, %s, %s to %s" % (name, least, most),
                   list(before) + [check.program("all_reduce_perf"), "-t", "8", "-b", least, "-e", most, "-f", "8", "-n", rounds, "-w", "10",
                    "--csv", path] + device + list(options), 30, {"TUTTI_LOG": "info"}, bandwidth, show=20)
        goals.note_times(check.measured, name, goals.read_times(path))


def bandwidth(output):
    """And how often the rank changed that launches for all, which without MPS is a switch of the process on the GPU."""
    found = re.findall(r"# (Out of bounds.*|Avg bus bandwidth.*)|(in \d+ calls on one GPU .*)", output)
    return "; ".join(" ".join("".join(words).split()) for words in found)


def benchmarks(check):
    if check.program("all_reduce_perf") is None:
        check.note("all_reduce_perf", "left out", words="it was not built")
        return
    if check.background is not None and check.background.is_running():
        check.report.add_answers(check.stage, [("processor", "PyTorch's backend is still being built beside the first of these")])
    if check.options.standin:  # on host memory, whose times are not reported
        check.step("all_reduce", [check.program("all_reduce_perf"), "-t", "2", "-b", "8", "-e", "64K", "-f", "8"], 30,
                   summary=bandwidth)
        return
    all_reduce_times(check, "threads", "--ranks", "threads")
    all_reduce_times(check, "processes tutti", "--mem", "tutti")
    all_reduce_times(check, "processes malloc")
    check.step("all_reduce, ranks that compute in between", [check.program("all_reduce_perf"), "-t", "8", "-b", "1M", "-e", "64M",
                                                              "-f", "8", "-n", "20", "--device", "cuda", "--mem", "tutti",
                                                              "--compute", "500"], 30, summary=bandwidth, show=20)
    with_mps = [sys.executable, os.path.join(HERE, "with_mps")]
    all_reduce_times(check, "MPS tutti", "--mem", "tutti", before=with_mps)
    all_reduce_times(check, "MPS malloc", before=with_mps)
    lenet_times(check)
    if check.program("kernels_perf"):
        path = new_file(check, "kernels.csv")
        check.step("kernels", [check.program("kernels_perf"), "--device", "cuda", "--csv", path], 40, show=60,
                   summary=lambda text: "below the goal: " + (goals.note_kernels(check.measured, path) or "none"))


def new_file(check, name):
    """Its path, which must not exist: programs do not overwrite files."""
    path = os.path.join(check.folder, name)
    if os.path.exists(path):
        os.remove(path)
    return path


def lenet_times(check):
    data = ["--data", check.options.data] if check.options.data else []
    for precision, rounds in (("fp32", "2"), ("tf32", "1")):
        result = check.step("LeNet, batch 100, next to PyTorch, " + precision, [
            sys.executable, os.path.join(check.source, "bench", "train_compare"), "--device", "cuda", "--precision", precision,
            "--bin", os.path.join(check.build, "bin"), "--rounds", rounds] + data, 50, show=20)
        if result is not None:
            goals.note_lenet(check.measured, result.output, "" if precision == "fp32" else " " + precision)


# -------------------------------------------------------------------------------------------- where a step's time goes

def traced(check, library, name, words, summary=steps.last_line, **environment):
    """The result of kernel_times.read for a command; None if it failed."""
    prefix = os.path.join(check.folder, "kernel-times")
    kernel_times.clear(prefix)
    result = check.step(name, words, 25, dict(environment, CUDA_INJECTION64_PATH=library, TUTTI_KERNEL_TIMES=prefix), summary)
    return kernel_times.read(prefix) if result is not None and result.state == "passed" else None


def shares(check):
    library = os.path.join(check.folder, "libkernel_times.so")
    words = kernel_times.compile_words(packages_folder(), library)
    if check.options.standin or isinstance(words, str):
        check.note("tracing", "skipped", words="there is no GPU" if check.options.standin else words)
        return
    built = check.step("what traces", words, 20)
    if built is None or built.state != "passed":
        return
    number = "1000"
    ours = [check.program("tutti-train") or "tutti-train", "--model", "lenet", "--steps", number, "--log-every", number, "--lr", "0.01",
            "--device", "cuda"]
    theirs = [sys.executable, os.path.join(check.source, "bench", "pytorch", "lenet_torch.py"), "-", number, "--device", "cuda", "--graph"]
    programs = [("a step of LeNet, fp32", ours), ("a step of LeNet, tf32", ours + ["--precision", "tf32"])]
    if importlib.util.find_spec("torch") is not None:
        programs.append(("a step of PyTorch's, fp32, in a graph", theirs))
    for name, words in programs:
        found = traced(check, library, name, words)
        if found is not None:
            check.report.add_block(check.stage, name, "\n".join(kernel_times.table(found[0], int(number))))
    found = traced(check, library, "contexts of 2 ranks", [os.path.join(check.build, "bin", "all_reduce_perf"), "--device", "cuda", "-t",
                                                           "2", "-b", "8", "-e", "1M", "-f", "8"], TUTTI_KERNEL_TIMES_CONTEXTS="1")
    if found is not None:
        check.report.add_answers(check.stage, [("contexts that each rank makes, as CUPTI sees it", "; ".join(
            "%d, on GPU %s" % (len(gpus), ", ".join(gpus)) for gpus in found[1]) or "none was seen")])


# ------------------------------------------------------------------------------------------------------- PyTorch

def torch_site(check):
    return os.path.join(check.shared, "site")


def start_torch_build(check):
    """In the background: it needs the processor, the next stages need the GPU."""
    if check.options.standin or (check.options.only and "torch" not in check.options.only) or "torch" in check.options.skip:
        return
    environment = dict(check.environment, CMAKE_BUILD_PARALLEL_LEVEL=str(max(check.options.jobs - 2, 1)),
                       TUTTI_TORCH_PYTHON=sys.executable)
    words = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation", "--upgrade", "--target",
             torch_site(check), "-C", "build-dir=" + os.path.join(check.shared, "torch-build")]
    defines = [word[2:] for word in shlex.split(check.options.cmake) if word.startswith("-D")]
    if packages_folder():
        defines.append("TUTTI_CUDA_PACKAGES=" + packages_folder())
    for define in defines:
        words += ["-C", "cmake.define." + define]
    log = os.path.join(check.folder, "torch-build.log")
    open(log, "wb").close()
    check.background = steps.Command(words + [os.path.join(check.source, "bindings", "torch")], log, environment)


def torch(check):
    if check.options.standin:
        check.note("PyTorch", "skipped", words="its tensors are on no stand-in")
        return
    if check.background is None and not os.path.isdir(os.path.join(torch_site(check), "torch_tutti")):
        start_torch_build(check)
    if check.background is not None:
        command, check.background = check.background, None
        built = check.finish("building the backend (began with the tests)", command, check.left_s(120))
        if built.state != "passed":
            return
    environment = {"PYTHONPATH": torch_site(check)}
    python = ["env", "-u", "CUDA_DEVICE_MAX_CONNECTIONS", sys.executable]  # the package sets it
    program = os.path.join(HERE, "torch_cuda.py")
    check.step("what is installed", python + ["-m", "torch_tutti"], 40, environment, show=30)
    for name, ranks in (("1 rank", "1"), ("2 ranks", "2")):
        check.step(name + ": collectives, DDP, FSDP2", python + [program, "--ranks", ranks], 70, environment, show=30)


# ----------------------------------------------------------------------------------------------------- sanitizer

def sanitizer(check):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if check.options.standin or not os.path.exists(tool):
        check.note("compute-sanitizer", "skipped", words="it is not here")
        return
    # Not NCCL's kernels: it asks for ones that it does not have, each of which is an error with a report.
    for tested, pattern in (("module_kernels", "windows/a_dense*"), ("device", "device_reduce/the_most*"),
                            ("stream_graph", "stream_graph/a_call_of_one*")):
        path = check.program("test_" + tested)
        if path is not None:
            check.step("memcheck, " + pattern, [tool, "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "9",
                                                path, "--jobs", "1", "--filter", pattern], 60,
                       summary=lambda text: "; ".join(sorted(set(re.findall(r"=+ (ERROR SUMMARY.*|Error: .*)", text)))))


STAGES = {
    "facts": (facts, 30, 5, "what machine it is"),
    "configure": (configure, 60, 10, "the build begins, beside the probes"),
    "probes": (probes, 130, 30, "what the kernel and the driver allow"),
    "build": (build, 200, 60, "the library, the module for GPUs, tests"),
    "kernels": (kernels, 60, 20, "the GPU's results against the host's"),
    "nccl": (nccl, 60, 10, "collectives by NCCL, one rank"),
    "one_gpu": (one_gpu, 130, 40, "collectives of ranks that share a GPU, processes and threads"),
    "graphs": (graphs, 30, 10, "CUDA graphs"),
    "queues": (queues, 60, 5, "ranks with few hardware queues"),
    "tensors": (tensors, 110, 30, "global tensors"),
    "operators": (operators, 90, 20, "operators on global tensors"),
    "trainer": (trainer, 70, 20, "training"),
    "benchmarks": (benchmarks, 170, 70, "how fast it is"),
    "shares": (shares, 60, 20, "where a step's time goes"),
    "torch": (torch, 110, 60, "PyTorch's tensors on the GPU"),
    "failures": (failures, 60, 15, "ranks that die, stop, differ"),
    "stress": (stress, 50, 10, "random calls in random streams"),
    "sanitizer": (sanitizer, 50, 0, "compute-sanitizer"),
}
