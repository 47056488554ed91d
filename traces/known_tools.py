"""Names of tools that reveal nothing about their user: standard programs, and tools of agents."""

from __future__ import annotations

_PROGRAMS = """
    apt apt-get awk base64 basename bash bazel bc bun bunx bzip2 cargo cat cd chmod
    chown clang cmake cmp comm conda cp curl cut date dd deno df diff dig dirname docker
    dotnet du echo egrep env exit expand export expr false fd fgrep file find flake8 fmt
    fold g++ gcc gem git go gofmt gradle grep gunzip gzip head helm hexdump hg hostname
    iconv id install java javac join jq kill less ln local ls lsof make man md5sum mkdir
    mktemp more mv mvn mypy nano ninja nl node nohup nox npm npx od openssl paste patch
    perl pgrep php pip pip3 pkill pnpm podman poetry popd printenv printf ps pushd pwd
    py.test pytest python python2 python3 read readlink realpath rename return rg rm
    rmdir rsync ruby ruff rustc scp sed seq set sh sha1sum sha256sum shuf sleep sort
    source split sqlite3 ssh stat strings sudo svn tac tail tar tee test time timeout
    touch tox tr tree true tsc type uname uniq unset unzip uv uvx vi vim wait wc wget
    which whoami xargs xxd yarn yes zcat zip zsh [ [[ . :
"""
_AGENT_TOOLS = """
    Agent AskUserQuestion Bash BashOutput Edit EnterPlanMode ExitPlanMode Glob Grep KillBash
    KillShell LS LSP ListMcpResourcesTool MultiEdit NotebookEdit NotebookRead Read
    ReadMcpResourceTool SlashCommand Skill Task TaskCreate TaskGet TaskList TaskOutput
    TaskStop TaskUpdate TodoRead TodoWrite ToolSearch WebFetch WebSearch Write
    exit_plan_mode apply_patch exec_command local_shell shell spawn_agent update_plan
    view_image wait_agent web_search write_stdin edit glob google_web_search list_directory
    read_file read_many_files replace run_shell_command save_memory search_file_content
    web_fetch request_user_input write_file write_todos browser browse_interactive condensation
    execute_bash
    execute_ipython_cell fetch fetch_url file_editor finish planning_file_editor
    request_condensation run run_ipython str_replace_based_edit_tool str_replace_editor
    submit task_tracker terminal think tool_use click_link edit_file find_file goto open
    scroll_down scroll_up search_dir search_file
"""
KNOWN_TOOLS = frozenset((_PROGRAMS + _AGENT_TOOLS).split())
