"""What any folder may use: values, texts and small rules that know nothing about jobs."""
