# gpu-bootstrap lab stand-in for conda's etc/profile.d/conda.sh: defines `conda` with activate and deactivate
export CONDA_EXE='@PREFIX@/bin/conda'
export CONDA_PYTHON_EXE='@PREFIX@/bin/python'

__conda_activate() {
    \local ask_conda
    ask_conda="$(\env PS1="${PS1:-}" "$CONDA_EXE" shell.posix "$@")" || \return
    \eval "$ask_conda"
    \hash -r
}

conda() {
    case "${1-}" in
    activate | deactivate | reactivate) __conda_activate "$@" ;;
    *) "$CONDA_EXE" "$@" ;;
    esac
}

if [ -z "${CONDA_SHLVL+x}" ]; then
    export CONDA_SHLVL=0
    PATH="@PREFIX@/condabin${PATH:+:$PATH}"
    export PATH
fi
