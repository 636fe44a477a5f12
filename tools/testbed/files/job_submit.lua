-- Checks of a site's administrators at submission. Filled in by testbed_config.py from sites.py.
local needs_account, needs_comment, refuses_memory = ${needs_account}, ${needs_comment}, ${refuses_memory}

local function refuse(why)
  slurm.log_user(why)
  return slurm.ERROR
end

function slurm_job_submit(job, partitions, user_id)
  if needs_account and not job.account then
    return refuse("this site needs --account")
  end
  if needs_comment and not string.match(job.comment or "", "field=.+;appl=.+") then
    return refuse('this site needs --comment="field=<field>;appl=<application>"')
  end
  if refuses_memory and (job.pn_min_memory or slurm.NO_VAL64) ~= slurm.NO_VAL64 then
    return refuse("this site does not take --mem")
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, user_id)
  return slurm.SUCCESS
end
