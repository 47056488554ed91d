#!/usr/bin/env bash
# A sweep as a job of a Ray cluster whose nodes have the same version of Turnstile installed:
#
#     ray job submit --address http://HEAD:8265 --working-dir . -- bash ray_job.sh
#
# Ray sets RAY_ADDRESS for the job, so that --cluster ray is the cluster that runs it. The run folder
# is written where the job runs, on the head node: OUT must be a folder that is kept.
set -euo pipefail

exec bench sweep sweep.toml --out "${OUT:-$HOME/runs/cluster}" --cluster ray "$@"
