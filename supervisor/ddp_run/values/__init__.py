"""What everybody may use: values, texts and small rules that know nothing of jobs."""
