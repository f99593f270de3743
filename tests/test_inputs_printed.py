"""What commands of a launch script print, where the script goes on with it: ``$(...)``, pipelines and ``<<<``."""

from typing import Any

import pytest

from simcluster.importers.megatron import scenario_from_arguments
from simcluster.importers.shell.filters import filtered, matched, said
from simcluster.importers.shell.script import read_script
from simcluster.importers.shell.state import State, joined

SIZES = "--num-layers 2 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --micro-batch-size 1 "
MORE = "--global-batch-size 8 --vocab-size 1000 --max-position-embeddings 512"


def after(text: str, name: str = "B", **more: Any) -> str | None:
    value = read_script(text, State("x.sh", **more)).get(name)
    return None if value is None else joined(value)


def test_options_that_a_function_prints() -> None:
    lines = "\n".join(f"  echo --{option}" for option in (SIZES + MORE).split("--")[1:])
    text = f'#!/bin/sh\nflags() {{\n{lines}\n  [ -n "$FP16" ] && echo --fp16\n  true\n}}\n'
    start = "torchrun --nproc_per_node 8 pretrain_gpt.py $(flags)\n"
    found = scenario_from_arguments(text + start, cluster={"topology": "dgx_h100", "nodes": 1})
    assert (found.document["model"]["layers"], found.document["training"]["precision"]) == (2, "fp32")
    half = scenario_from_arguments(f"{text}FP16=1\n{start}", cluster={"topology": "dgx_h100", "nodes": 1})
    assert half.document["training"]["precision"] == "fp16-mixed"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("f() { echo a; local B=x; echo $1; }; B=1; C=$(f b); B=$B$C", "1a\nb"),
        ("f() { if [ $1 = x ]; then echo 1; return; fi; echo 2; }; B=$(f x)$(f y)", "12"),
        ("f() { echo told >&2; echo 7; }; B=$(f)", "7"),
        ("f() { echo kept > file; echo 7; }; B=$(f)", "7"),
        ("B=$(for i in 1 2 3; do [ $i = 2 ] && continue; echo -n $i; done)", "13"),
        ("for i in 1 2 3; do B=$i; [ $i = 2 ] && break; done", "2"),
        ("B=$(for i in a b; do for j in 1 2; do echo -n $i$j; break; done; done)", "a1b1"),
        ("B=$([ 1 = 2 ] && echo one || echo other)", "other"),
        ("B=$(cat <<EOT\nx $((1 + 1))\nEOT\n)", "x 2"),
        ("A=(x y); B=$(printf '%s,' \"${A[@]}\")", "x,y,"),
        ("A=a,b,c; B=$(echo $A | tr ',' '\\n' | wc -l)", "3"),
        ("A=a,b,c; B=$(echo $A | awk -F, '{print NF}')", "3"),
        ("A=a:b; B=$(echo $A | cut -d: -f2)", "b"),
        ("A='x  y   z'; B=$(echo \"$A\" | sed -e 's/  */ /g')", "x y z"),
        ("A=llama-70b; B=$(echo $A | grep -oE '[0-9]+b' | tr -d b)", "70"),
        ("A='tp=4 pp=2'; B=$(grep -oP 'pp=\\K\\d+' <<< \"$A\")", "2"),
        ("A=3; B=$(echo \"$A*1000/2\" | bc)", "1500"),
        ("B=$(echo \"2+$NOBODY\" | bc)", "$(echo...)"),
        ("B=$(echo \"$NOBODY  x\" | sed 's/  */ /g')", "$NOBODY x"),
        ("B=$(echo $NOBODY | tr a-z A-Z)", "$(echo...)"),
        ("B=$(python -c 'print(1)')", "$(python...)"),
        ("B=$(echo 1; hostname)", "$(echo...)"),
        ("IFS=: read -r -a A <<< 'x:y z'; B=${A[1]}", "y z"),
        ("read A B <<< '1 2 3'", "2 3"),
        ("echo a > f; echo b >> f; B=$(cat f)", "a\nb"),
        ("if (return 0 2> /dev/null); then A=1; fi; B=read", "read"),
    ],
)  # fmt: skip
def test_what_a_script_goes_on_with(text: str, value: str) -> None:
    assert after(text) == value


@pytest.mark.parametrize(
    ("test", "value"),
    [
        ('echo "$A" | grep -q -- "--scale"', "yes"),
        ('echo "$A" | grep -q -- "--other"', "no"),
        ('! echo "$A" | grep -q -- "--other"', "yes"),
        ('grep -qE "^-+(scale|x)" <<< "$A"', "yes"),
        ("[[ $A == *2 ]] && echo $A | grep -qi SCALE", "yes"),
        ('echo "$A" | tr -d "-" | grep -q -- "-"', "no"),
        ("hostname | grep -q node", "no"),
    ],
)
def test_a_pipeline_that_is_tested(test: str, value: str) -> None:
    text = f"A='--scale 2'\nif {test}; then B=yes; else B=no; fi"
    assert after(text) == value
    told = [sentence for sentence in read_script(text, State("x.sh")).assumed if "is taken as not met" in sentence]
    assert bool(told) == test.startswith("hostname")


def test_commands_inside_of_others_start_no_training() -> None:
    assert not read_script("B=$(python train.py --num-layers 2)", State("x.sh")).commands


def test_patterns_that_could_take_long_are_not_read() -> None:
    text = "a" * 1999
    for pattern in ("(a*)*b", "(a|a)+b", "a*a*a*a*b", "x" * 300):
        assert matched(["grep", "-qE", pattern], text) is None
    assert filtered(["sed", "s/(a*)*b//"], text) == text  # a plain bracket, as sed takes it
    assert filtered(["sed", "-E", "s/(a*)*b//"], text) is None
    assert filtered(["tr", "a", "b"], "a" * 30_000) is None


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        (["grep", "x", "file"], "x", None),
        (["grep", "-c", "x"], "x\ny\nx\n", "2\n"),
        (["grep", "-v", "x"], "x\ny\n", "y\n"),
        (["grep", "-w", "x"], "xx\nx\n", "x\n"),
        (["grep", "-F", "a.b"], "aab\na.b\n", "a.b\n"),
        (["grep", "[[:digit:]]"], "a\n1\n", "1\n"),
        (["grep", "a\\|b"], "a\nb\nc\n", "a\nb\n"),
        (["grep", "["], "a", None),
        (["sed", "s/a\\(b\\)/\\1&/"], "ab", "bab"),
        (["sed", "-n", "p"], "a", None),
        (["sed", "s/a/b/;s/b/c/"], "a", "c"),
        (["tr", "-s", " "], "a   b", "a b"),
        (["tr", "a-c", "A-C"], "abcd", "ABCd"),
        (["cut", "-d", ",", "-f", "2"], "a,b\nc\n", "b\nc\n"),
        (["cut", "-c2-3"], "abcd", "bc\n"),
        (["cut", "-d-", "-f1,3-"], "a-b-c-d", "a-c-d\n"),
        (["cut", "--complement", "-c1"], "a", None),
        (["tr", "-cd", "0-9"], "16GB", "16"),
        (["head", "-n", "1"], "a\nb\n", "a\n"),
        (["tail", "-1"], "a\nb\n", "b\n"),
        (["wc", "-w"], "a b\n", "2\n"),
        (["awk", "{print $2}"], "a b\n", "b\n"),
        (["awk", "{print $1 + 1}"], "1\n", None),
        (["xargs"], " a \n b ", "a b\n"),
        (["tee", "log"], "a", "a"),
        (["sort"], "a", None),
    ],
)
def test_commands_that_pass_a_text_on(words: list[str], text: str, expected: str | None) -> None:
    assert filtered(words, text) == expected


def test_what_echo_and_printf_print() -> None:
    assert said(["echo", "-n", "a", "b"]) == "a b"
    assert said(["printf", "%s\\n", "a", "b"]) == "a\nb\n"
    assert said(["printf", "%05.1f", "1"]) is None


@pytest.mark.parametrize(
    ("test", "value"),
    [
        ('"${A}" = "x" && ${N} -eq 1', "yes"),
        ('"${A}" = "x" && ${N} -eq 2', "no"),
        ("$A = y && $N -eq 1 || $A = x", "yes"),
        ('"$A" = "y" || "$A" = "z" || $A = x', "yes"),
        ("$A = x && ( $N = 2 || $N = 1 )", "yes"),
        ("! $A = y && $N != 2", "yes"),
        ("$A = x* && $N == 1*", "yes"),
        ("-n $A && $A = y", "no"),
    ],
)
def test_signs_between_brackets_bind_as_a_shell_binds_them(test: str, value: str) -> None:
    state = read_script(f"A=x\nN=1\nif [[ {test} ]]; then B=yes; else B=no; fi", State("x.sh"))
    assert (state.get("B"), state.unset) == (value, {})
