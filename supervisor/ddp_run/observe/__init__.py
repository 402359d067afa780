"""What running ranks and their host show, without a change to the job."""
