#!/usr/bin/env bash
# LLVM's option for copies in order, which bpf-linker passes by default, takes small memsets out of line.
#
# Version: LLVM 20 as in llvmlite 0.45.1 from PyPI; bpf-linker 0.13.0 from crates.io (its source). Linux x86-64.
# Expected: `-bpf-expand-memcpy-in-order` changes how memcpy is compiled for BPF, for JITs that recognise copies. A memset of 64
# aligned bytes stays eight stores of a word.
# Seen: the option sets the limit of inline stores of memset to zero, too, and nothing expands it later. What is left is a call of a
# function `memset`, of which LLVM says "not supported" even where the module defines one. bpf-linker passes the option by default
# and drops that message, so programs by aya call aya's `memset`: a loop of five instructions a byte, more than 320 for eight words.
# `--disable-expand-memcpy-in-order` makes them eight stores again.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv own
own/bin/pip install --quiet llvmlite==0.45.1
cat >compile.py <<'PY'
"""Compiles a memset of eight words for BPF, under these options of LLVM."""
import re
import sys

import llvmlite.binding as llvm

TEXT = """
target triple = "bpfel"
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define i64 @clears(ptr %words) {
  call void @llvm.memset.p0.i64(ptr align 8 %words, i8 0, i64 64, i1 false)
  ret i64 0
}
define void @memset(ptr %to, i8 %value, i64 %count) {
  ret void
}
"""
for option in sys.argv[1:]:
    llvm.set_option("compile", option)
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
machine = llvm.Target.from_triple("bpfel").create_target_machine(opt=2)
code = machine.emit_assembly(llvm.parse_assembly(TEXT))
print(len(re.findall(r"\*\(u64 \*\)\(r\d \+ \d+\) = ", code)), "stores of a word")
PY
without=$(own/bin/python compile.py)
with=$(own/bin/python compile.py -bpf-expand-memcpy-in-order 2>&1 || :)
echo "without the option: $without"
echo "with it: $with"
cargo init --quiet --vcs none --name fetches fetches
export CARGO_HOME=$dir/cargo
(cd fetches && cargo add --quiet bpf-linker@=0.13.0 --no-default-features && cargo fetch --quiet)
source=$(find "$CARGO_HOME/registry/src" -maxdepth 2 -type d -name bpf-linker-0.13.0)
passes=$(grep -rn 'bpf-expand-memcpy-in-order' "$source/src" | sed "s|$source/||")
drops=$(grep -rn 'A call to built-in function' "$source/src" | sed "s|$source/||")
printf 'bpf-linker: %s\nbpf-linker: %s\n' "$passes" "$drops"
[ "$without" = "8 stores of a word" ] && [[ $with == *"A call to built-in function 'memset' is not supported"* ]] &&
    [ -n "$passes" ] && [ -n "$drops" ]
