# Sourced by each batch script: source "$CODE/train_anywhere/job/clean.sh" (slurm | pbs)
# Unset the variables of an earlier launcher or job in the submitting shell. Variables that only tune them stay.
for name in $(compgen -e); do
    case $name in
        OMPI_MCA_ess | OMPI_MCA_ess_base_* | OMPI_MCA_orte_ess_* | OMPI_MCA_orte_*_uri | OMPI_MCA_orte_*_dir | OMPI_MCA_orte_launch | OMPI_MCA_orte_app_num | OMPI_MCA_orte_num_nodes) unset "$name" ;;
        PMIX_MCA_* | PMIX_INSTALL_PREFIX | PRTE_MCA_* | PRTE_ALLOW_*) ;;
        RANK | WORLD_SIZE | LOCAL_RANK | LOCAL_WORLD_SIZE | NODE_RANK | GROUP_RANK | GROUP_WORLD_SIZE | ROLE_RANK | ROLE_WORLD_SIZE | ROLE_NAME) unset "$name" ;;
        MASTER_ADDR | TF_CONFIG | TORCHELASTIC_* | PET_NNODES | PET_NPROC_* | PET_NODE_RANK | PET_MASTER_* | PET_RDZV_* | PET_STANDALONE) unset "$name" ;;
        PET_LOCAL_ADDR | PET_MODULE | PET_NO_PYTHON | PET_RUN_PATH | OMPI_COMM_* | OMPI_UNIVERSE_SIZE | OMPI_APP_CTX_* | OMPI_NUM_APP_CTX) unset "$name" ;;
        OMPI_FIRST_RANKS | OMPI_ARGV | OMPI_COMMAND | OMPI_FILE_LOCATION | PMI_* | PMI2_* | PMIX_* | PRTE_* | HOROVOD_RANK | HOROVOD_SIZE) unset "$name" ;;
        HOROVOD_LOCAL_* | HOROVOD_CROSS_* | HOROVOD_HOSTNAME | HOROVOD_CONTROLLER | HOROVOD_ELASTIC | HOROVOD_GLOO_RENDEZVOUS_*) unset "$name" ;;
        HOROVOD_SECRET_KEY | _HOROVOD_* | TRAIN_HOSTS | TRAIN_NODE | TRAIN_STARTED) unset "$name" ;;
        SRUN_* | SBATCH_* | SLURM_EXPORT_ENV | SLURM_CPU_BIND* | SLURM_DIST* | SLURM_HOSTFILE | SLURM_TRES_PER_TASK | SLURM_GPUS_PER_TASK | SLURM_CPUS_PER_GPU) [ "$1" != slurm ] || unset "$name" ;;
    esac
done
if [ "$1" = slurm ]; then
    # id of this job for Slurm's commands, which take the job id of an array's member for the whole array
    export TRAIN_JOB="${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}"
    TRAIN_JOB=${TRAIN_JOB:-$SLURM_JOB_ID}
    sizes=(${!SLURM_MEM_PER_@})
    # srun accepts only one of them, and --mem of a step not with that of a CPU; without any, a step has the memory of the job
    [[ -z "${sizes[1]:-}" && -z "${SLURM_MEM_PER_CPU:-}" ]] || unset "${sizes[@]}"
fi
